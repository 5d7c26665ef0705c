"""Several answers to one prompt, log probabilities, and penalties through the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, VOCABULARY, byte_text
from engine_clients import Client
from numpy_executor import NumpyExecutor, hash_logits

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import GenerationRequest, SamplingParams
from astrai_cli.engine.sampling import SamplingPipeline, choice_seed, token_logprob
from astrai_cli.errors import InvalidInputError, OverloadedError
from backends.base import Step

PROMPT = (72, 101, 121)
SEEDED = GenerationRequest(PROMPT, SamplingParams(seed=7), 12, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(NumpyExecutor(VOCABULARY, 64), byte_text(END)) as engine:
        yield engine


def choices(engine: InferenceEngine, request: GenerationRequest, n: int) -> list[Client]:
    clients = [Client(request) for _ in range(n)]
    engine.submit_choices(request, [client.take for client in clients])
    for client in clients:
        assert client.finish.reason == "length"
    return clients


def test_choices_are_the_answers_to_their_seeds(engine: InferenceEngine) -> None:
    answers = [client.token_ids for client in choices(engine, SEEDED, 3)]
    assert len(set(answers)) == 3
    for index, answer in enumerate(answers):
        sampling = SamplingParams(seed=choice_seed(7, index))
        (alone,) = choices(engine, replace(SEEDED, sampling=sampling), 1)
        assert answer == alone.token_ids


def test_choices_without_a_seed_differ(engine: InferenceEngine) -> None:
    answers = choices(engine, replace(SEEDED, sampling=SamplingParams()), 3)
    assert len({client.token_ids for client in answers}) == 3


@pytest.mark.parametrize("limits", [{"max_inflight_requests": 3}, {"max_sessions": 3}])
def test_choices_are_admitted_all_or_none(limits: dict[str, Any]) -> None:
    executor = NumpyExecutor(VOCABULARY, 64)
    with InferenceEngine(executor, byte_text(END), LimitsConfig(**limits)) as engine:
        blocked, late = Client(SEEDED), [Client(SEEDED) for _ in range(3)]

        def before_step(step: Step) -> None:
            if executor.steps:
                return
            with pytest.raises(OverloadedError):
                engine.submit_choices(SEEDED, [client.take for client in late])
            engine.submit_choices(SEEDED, [client.take for client in late[:2]])

        executor.before_step = before_step
        engine.submit_choices(SEEDED, [blocked.take])
        for client in (blocked, *late[:2]):
            assert client.finish.reason == "length"
        assert late[2].events == []
        assert engine.get_stats()["requests_finished"]["length"] == 3


def test_a_request_that_is_refused_evicts_no_session() -> None:
    evicted: list[str] = []
    limits = LimitsConfig(max_sessions=2, evict_idle_sessions=True)
    executor = NumpyExecutor(VOCABULARY, 64)
    with InferenceEngine(executor, byte_text(END), limits, on_evicted=evicted.append) as engine:
        choices(engine, replace(SEEDED, session_id="a"), 1)
        with pytest.raises(OverloadedError, match="1 sessions are open, of at most 2"):
            engine.submit_choices(SEEDED, [print] * 3)
        assert evicted == []
        choices(engine, SEEDED, 2)
        assert evicted == ["a"]


def test_a_session_has_one_answer_a_request(engine: InferenceEngine) -> None:
    with pytest.raises(InvalidInputError, match="n is 2") as caught:
        engine.submit_choices(replace(SEEDED, session_id="s"), [print, print])
    assert caught.value.param == "n"


def test_log_probabilities_are_those_of_the_models_own_logits(engine: InferenceEngine) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "seed": 3, "max_tokens": 9, "ignore_eos": True}
    answer = engine.generate(
        list(PROMPT), logprobs=4, repetition_penalty=1.5, logit_bias={5: 3.0}, **options
    )
    history = list(PROMPT)
    for token_id, told in zip(answer.token_ids, answer.logprobs, strict=True):
        logits = hash_logits(np.array(history), VOCABULARY)
        assert told == token_logprob(logits, token_id, 4)
        history.append(token_id)
    assert engine.generate(list(PROMPT), **options).logprobs == ()


def test_an_end_token_has_no_log_probability(engine: InferenceEngine) -> None:
    answer = engine.generate(list(PROMPT), logprobs=0, logit_bias={END: 100.0})
    assert (answer.token_ids, answer.logprobs) == ((END,), ())


def test_penalties_see_the_prompt_and_the_answer(engine: InferenceEngine) -> None:
    params = SamplingParams(
        temperature=0, repetition_penalty=3.0, presence_penalty=0.5, frequency_penalty=0.5
    )
    (client,) = choices(engine, replace(SEEDED, sampling=params, max_tokens=30), 1)
    pipeline = SamplingPipeline.from_params(params, 0, PROMPT)
    history = list(PROMPT)
    for index, token_id in enumerate(client.token_ids):
        assert token_id == pipeline.sample(hash_logits(np.array(history), VOCABULARY), index)
        history.append(token_id)


@pytest.mark.parametrize("stop", ["<end>", "end>", "never"])
def test_a_requests_stop_goes_before_an_end_token_at_the_same_place(
    engine: InferenceEngine, stop: str
) -> None:
    answer = engine.generate(list(PROMPT), logit_bias={END: 100.0}, stop=stop)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", (END,), "stop")
    assert answer.matched_stop == (None if stop == "never" else stop)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"logprobs": 21}, "logprobs is 21; it must be 0 to 20"),
        ({"stop_token_ids": [1] * 65}, "65 stop_token_ids; at most 64"),
        ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids has token id 258"),
        ({"logit_bias": {-1: 0.5}}, "logit_bias has token id -1"),
    ],
)
def test_options_out_of_bounds_are_named(engine: InferenceEngine, options: Any, names: str) -> None:
    with pytest.raises(InvalidInputError, match=names) as caught:
        engine.generate(list(PROMPT), **options)
    assert caught.value.param == next(iter(options))
