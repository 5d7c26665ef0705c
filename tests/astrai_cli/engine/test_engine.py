from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, VOCABULARY, byte_text
from numpy_executor import NumpyExecutor, hash_logits

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, Finish, GenerationRequest, Piece
from astrai_cli.errors import ContextOverflowError, ExecutionError, InvalidInputError

CONTEXT = 64
PROMPT = [72, 101, 121]


class Script(NumpyExecutor):
    """Always continues with the bytes of its text, by position, whatever the prompt says."""

    def __init__(self, answer: bytes, *, then: int = END) -> None:
        super().__init__(VOCABULARY, CONTEXT)
        self._answer = [*answer, then]

    def step(self, step: Any) -> Any:
        output = super().step(step)
        rows = [one.start + len(one.tokens) - len(PROMPT) for one in step.sequences]
        for logits, row in zip(output.logits, rows, strict=True):
            logits[self._answer[min(row, len(self._answer) - 1)]] = 1e6
        return output


def scripted(answer: str | bytes, **options: Any) -> InferenceEngine:
    raw = answer.encode() if isinstance(answer, str) else answer
    return InferenceEngine(Script(raw), byte_text(END), **options)


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(NumpyExecutor(VOCABULARY, CONTEXT), byte_text(END)) as engine:
        yield engine


def greedy(prompt: list[int], n: int) -> tuple[int, ...]:
    history = list(prompt)
    for _ in range(n):
        history.append(int(hash_logits(np.array(history), VOCABULARY).argmax()))
    return tuple(history[len(prompt) :])


def test_an_answer_ends_at_an_end_token_which_is_counted_and_not_shown() -> None:
    with scripted("héllo 👋") as engine:
        answer = engine.generate(PROMPT)
    assert answer.text == str(answer) == "héllo 👋"
    assert answer.token_ids == (*"héllo 👋".encode(), END)
    assert answer.finish_reason == "stop"
    assert answer.matched_stop is None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.total_tokens == 3 + len(answer.token_ids)


def test_end_tokens_can_be_ignored() -> None:
    with scripted("ab") as engine:
        answer = engine.generate(PROMPT, ignore_eos=True, max_tokens=5)
    assert (answer.text, answer.token_ids) == ("ab", (97, 98, END, END, END))
    assert answer.finish_reason == "length"


def test_a_stop_id_ends_an_answer_and_is_not_shown() -> None:
    with scripted("one two") as engine:
        answer = engine.generate(PROMPT, stop_token_ids=[ord(" ")], ignore_eos=True)
    assert (answer.text, answer.token_ids[-1]) == ("one", ord(" "))
    assert (answer.finish_reason, answer.matched_stop) == ("stop", None)


@pytest.mark.parametrize("stop", ["wo", ["xyz", "wo", "o!"]])
def test_a_stop_string_is_removed_and_named(stop: str | list[str]) -> None:
    with scripted("one two! three") as engine:
        answer = engine.generate(PROMPT, stop=stop)
    assert (answer.text, answer.finish_reason, answer.matched_stop) == ("one t", "stop", "wo")
    assert answer.usage.completion_tokens == len("one two")


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    with scripted("one tw") as engine:
        pieces = list(engine.generate(PROMPT, stream=True, stop=["two"]))
    assert [piece.text for piece in pieces] == ["o", "n", "e", " ", "", "", "", "tw"]


def test_a_truncated_character_ends_as_a_replacement() -> None:
    with scripted("hé") as engine:
        assert engine.generate(PROMPT, max_tokens=2).text == "h\ufffd"


def test_an_answer_ends_where_the_context_is_full(engine: InferenceEngine) -> None:
    prompt = list(range(1, CONTEXT - 3))
    answer = engine.generate(prompt, temperature=0, ignore_eos=True)
    assert answer.token_ids == greedy(prompt, 4)
    assert answer.finish_reason == "length"


def test_text_and_its_ids_are_the_same_prompt(engine: InferenceEngine) -> None:
    by_text = engine.generate("Hey", temperature=0, max_tokens=5)
    assert by_text == engine.generate(PROMPT, temperature=0, max_tokens=5)
    assert by_text.token_ids == greedy(PROMPT, 5)


def test_several_prompts_give_answers_in_their_order(engine: InferenceEngine) -> None:
    prompts = [[n, n + 1] for n in range(100)]
    answers = engine.generate(prompts, temperature=0, max_tokens=3, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [greedy(prompt, 3) for prompt in prompts]


def test_several_streams_run_at_once(engine: InferenceEngine) -> None:
    streams = engine.generate(["ab", "cd"], stream=True, temperature=0, max_tokens=3)
    texts = ["".join(piece.text for piece in stream) for stream in streams]
    assert texts == [str(engine.generate(p, temperature=0, max_tokens=3)) for p in ("ab", "cd")]


def test_a_seed_repeats_an_answer_and_no_seed_does_not(engine: InferenceEngine) -> None:
    def answer(seed: int | None) -> tuple[int, ...]:
        return engine.generate(PROMPT, seed=seed, max_tokens=12, ignore_eos=True).token_ids

    assert answer(5) == answer(5) != answer(6)
    assert answer(None) != answer(None)


def test_closing_a_stream_cancels_its_request() -> None:
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    closed = threading.Event()

    def before_step(step: object) -> None:
        assert not executor.steps or closed.wait(30)

    executor.before_step = before_step
    engine = InferenceEngine(executor, byte_text(END))
    stream = engine.generate(PROMPT, stream=True, ignore_eos=True)
    next(stream)
    stream.close()
    closed.set()
    engine.shutdown(timeout=30)
    assert engine.get_stats()["requests_finished"]["cancelled"] == 1


def test_async_events_come_one_by_one_and_leaving_early_cancels(engine: InferenceEngine) -> None:
    async def run() -> list[Event]:
        abandoned = engine.generate_async(PROMPT, ignore_eos=True)
        await anext(abandoned)
        await abandoned.aclose()
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
        return [event async for event in engine.generate_async("Hey", **options)]

    *pieces, finish = asyncio.run(run())
    ids = [piece.token_ids for piece in pieces if isinstance(piece, Piece) and piece.token_ids]
    assert tuple(ids) == tuple((token_id,) for token_id in greedy(PROMPT, 4))
    assert isinstance(finish, Finish)
    assert finish.reason == "length"


def test_score_gives_the_logits_of_every_row(engine: InferenceEngine) -> None:
    ids = list(range(50, 50 + CONTEXT))
    logits = engine.score(ids)
    assert logits.dtype == np.float32
    expected = [hash_logits(np.array(ids[: n + 1]), VOCABULARY) for n in range(CONTEXT)]
    np.testing.assert_array_equal(logits, expected)


def test_scores_and_answers_run_beside_each_other(engine: InferenceEngine) -> None:
    ids = list(range(CONTEXT))
    stream = engine.generate(PROMPT, stream=True, temperature=0, ignore_eos=True)
    first = next(stream)
    np.testing.assert_array_equal(engine.score(ids)[-1], hash_logits(np.array(ids), VOCABULARY))
    answer = (*first.token_ids, *(i for piece in stream for i in piece.token_ids))
    assert answer == greedy(PROMPT, CONTEXT - len(PROMPT))


def test_a_failed_step_raises(engine: InferenceEngine) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("out of luck")

    executor = engine._executor
    assert isinstance(executor, NumpyExecutor)
    executor.before_step = fail
    with pytest.raises(ExecutionError, match="out of luck"):
        engine.generate(PROMPT)
    with pytest.raises(ExecutionError, match="out of luck"):
        engine.score(PROMPT)


def test_stats_count_requests_tokens_and_cells(engine: InferenceEngine) -> None:
    engine.generate(PROMPT, max_tokens=4, ignore_eos=True)
    stats = engine.get_stats()
    assert stats["tokens_prefilled"] == 3
    assert stats["tokens_decoded"] == 3
    assert stats["steps"] == 4
    assert stats["requests_finished"] == {"stop": 0, "length": 1, "cancelled": 0, "error": 0}
    assert (stats["cells_used"], stats["cells_total"]) == (0, 8 * CONTEXT)
    assert stats["step_seconds_mean"] > 0


@pytest.mark.parametrize(
    ("request_", "kind", "names"),
    [
        (GenerationRequest(()), InvalidInputError, "empty"),
        (GenerationRequest((1, -2)), InvalidInputError, "token id -2"),
        (GenerationRequest((VOCABULARY,)), InvalidInputError, f"0 to {VOCABULARY - 1}"),
        (GenerationRequest((1,), max_tokens=0), InvalidInputError, "max_tokens is 0"),
        (GenerationRequest((1,), stop=("",)), InvalidInputError, "stop string"),
        (GenerationRequest((1,) * (CONTEXT + 1)), ContextOverflowError, "65 tokens > 63 maximum"),
        (GenerationRequest((1,), max_tokens=64), ContextOverflowError, "max_tokens is 64; .* 64"),
        (
            GenerationRequest((1,) * CONTEXT),
            ContextOverflowError,
            "64 tokens > 63 .* context of 64",
        ),
        (
            GenerationRequest((1,) * 60, max_tokens=5),
            ContextOverflowError,
            "60 tokens > 59 maximum; the context of 64 must hold it and 5",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_numbers(
    engine: InferenceEngine, request_: GenerationRequest, kind: type[Exception], names: str
) -> None:
    with pytest.raises(kind, match=names):
        engine.generate_with_request(request_)
    with pytest.raises(kind, match=names):
        engine.submit(request_, print)
    assert engine.get_stats()["requests_finished"]["error"] == 0


def test_unknown_options_are_refused(engine: InferenceEngine) -> None:
    options: dict[str, Any] = {"temprature": 0}
    with pytest.raises(TypeError, match="temprature"):
        engine.generate(PROMPT, **options)


def test_many_threads_share_an_engine() -> None:
    limits = LimitsConfig(max_decode_sequences=4, max_inflight_requests=5)
    answers: dict[int, tuple[int, ...]] = {}
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    with InferenceEngine(executor, byte_text(END), limits) as engine:

        def ask(n: int) -> None:
            answer = engine.generate([n, n], temperature=0, max_tokens=6, ignore_eos=True)
            answers[n] = answer.token_ids

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {n: greedy([n, n], 6) for n in range(24)}
