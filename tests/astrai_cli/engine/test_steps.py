"""Steps that begin before the tokens of the last one are known."""

from __future__ import annotations

from typing import Any

import pytest
from byte_tokenizer import VOCABULARY, byte_text
from engine_clients import CONTEXT, GREEDY, Client, alone, request, run_schedule
from launching_executor import Launched, LaunchingNumpyExecutor

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.request import GenerationRequest, SamplingParams
from astrai_cli.errors import ExecutionError
from backends.base import Step

LIMITS = LimitsConfig(max_decode_sequences=4, page_size=4)


def open_executor() -> LaunchingNumpyExecutor:
    return LaunchingNumpyExecutor(VOCABULARY, CONTEXT, 32)


def test_answers_run_on_until_the_last_token_there_is_room_for() -> None:
    executor = open_executor()
    client = Client(request(3, 12))
    run_schedule([client], LIMITS, executor)
    assert client.token_ids == alone(client.request)
    # The prompt's step gives the first token; each of the others is begun early.
    assert len(executor.steps) == 12
    assert executor.n_early == 11


def test_an_answer_that_ends_leaves_one_row_unused() -> None:
    executor = open_executor()
    one, other = Client(request(3, 12)), Client(request(4, 12, first=9))
    ids = alone(one.request)
    end = next(i for i in range(3, 12) if ids[i] not in ids[:i])
    one.request = GenerationRequest(
        one.request.prompt, GREEDY, 12, ignore_eos=True, stop_token_ids=(ids[end],)
    )
    engine = run_schedule([one, other], LIMITS, executor)
    assert (one.token_ids, one.finish.reason) == (ids[: end + 1], "stop")
    assert other.token_ids == alone(other.request)
    assert engine.get_stats()["cells_used"] == 0
    rows = sum(count for step in executor.steps for _, count in step)
    assert rows == 3 + 4 + end + 1 + 11


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": SamplingParams(temperature=0, repetition_penalty=1.2)},
        {"logprobs": 1},
    ],
)
def test_answers_that_depend_on_their_tokens_wait_for_them(options: dict[str, Any]) -> None:
    executor = open_executor()
    asked = {"sampling": GREEDY, "max_tokens": 9, "ignore_eos": True, **options}
    client = Client(GenerationRequest((1, 2, 3), **asked))
    run_schedule([client], LIMITS, executor)
    assert client.token_ids == alone(client.request)
    assert executor.n_early == 0


class _OneAtATime(LaunchingNumpyExecutor):
    def launch(self, step: Step) -> Launched:
        if self.under_way:
            raise ExecutionError("no room for two")
        return super().launch(step)


def test_a_step_that_cannot_begin_early_begins_in_its_turn() -> None:
    executor = _OneAtATime(VOCABULARY, CONTEXT, 32)
    client = Client(request(3, 9))
    run_schedule([client], LIMITS, executor)
    assert client.token_ids == alone(client.request)
    assert executor.n_early == 0


def test_a_session_goes_on_from_an_answer_that_ended_early() -> None:
    executor = open_executor()
    ids = alone(request(3, 12))
    stop = next(i for i in range(3, 12) if ids[i] not in ids[:i])
    first = Client(
        GenerationRequest(
            (1, 2, 3),
            GREEDY,
            12,
            ignore_eos=True,
            stop_token_ids=(ids[stop],),
            session_id="s",
        )
    )
    prompt = (1, 2, 3, *ids[: stop + 1], 7)
    second = Client(
        GenerationRequest(prompt, GREEDY, 6, ignore_eos=True, session_id="s"), arrival=10**6
    )
    run_schedule([first, second], LIMITS, executor, byte_text())
    assert second.token_ids == alone(second.request)
    assert second.finish.usage.cached_tokens == len(prompt) - 2
