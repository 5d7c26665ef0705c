"""Whatever is proposed, answers are what they are without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from byte_tokenizer import END, VOCABULARY, byte_text
from chi_square import bound, compare
from engine_clients import CONTEXT, GREEDY, Client, alone, run_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from launching_executor import LaunchingNumpyExecutor
from numpy.typing import NDArray
from numpy_executor import NumpyExecutor, hash_logits
from wrong_verification import Redrawn

from astrai_cli.benchmark.replay import ReplayProposer
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import PageCache, Storage
from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.generation import GenerationTask
from astrai_cli.engine.prompts import PreparedPrompt
from astrai_cli.engine.request import Event, Finish, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.speculation import Proposal, Proposer
from astrai_cli.engine.task import Task
from astrai_cli.errors import ExecutionError
from backends.base import Step

sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3, 50]),
    top_p=st.sampled_from([0.6, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 100),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
)
requests = st.builds(
    GenerationRequest,
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple),
    sampling=sampling,
    max_tokens=st.integers(1, 24),
    ignore_eos=st.just(False),
    logprobs=st.sampled_from([None, 0, 2]),
    # Bytes that many answers have, alone and behind another.
    stop=st.sampled_from([(), ("A", "b"), ("\x01", "\x02\x03")]),
    stop_token_ids=st.sampled_from([(), tuple(range(100, 120))]),
)


def answers_of(clients: Sequence[Client]) -> list[tuple[object, ...]]:
    """All that a client can tell of its answer, but for how it was cut into pieces."""
    return [
        (
            "".join(piece.text for piece in client.events if isinstance(piece, Piece)),
            client.token_ids,
            [
                each
                for piece in client.events
                if isinstance(piece, Piece)
                for each in piece.logprobs
            ],
            client.finish,
        )
        for client in clients
    ]


@settings(max_examples=40, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=5, unique_by=lambda request: request.prompt),
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    n_draft=st.integers(1, 7),
    pages=st.tuples(st.sampled_from([1, 3, 4]), st.integers(CONTEXT, 3 * CONTEXT)),
    adaptive=st.booleans(),
    executor=st.sampled_from([NumpyExecutor, LaunchingNumpyExecutor]),
)
def test_answers_are_the_same_with_drafts(
    asked: list[GenerationRequest],
    accuracy: float,
    n_draft: int,
    pages: tuple[int, int],
    executor: type[NumpyExecutor],
    *,
    adaptive: bool,
) -> None:
    """However good they are, with room for few and for many."""
    page_size, n_cells = pages
    limits = LimitsConfig(
        page_size=page_size,
        max_cells=n_cells + page_size + 1,
        max_decode_sequences=3,
        max_prefill_chunk=8,
        adaptive_drafts=adaptive,
    )
    text = byte_text(END, *range(200, 205))
    plain = [Client(request) for request in asked]
    run_schedule(plain, limits, text=text)
    early = [Client(request) for request in asked]
    run_schedule(early, limits, LaunchingNumpyExecutor(VOCABULARY, CONTEXT, 32), text)
    assert answers_of(early) == answers_of(plain)
    known = {request.prompt: (*alone(request), 0, 0) for request in asked}
    drafted = [Client(request) for request in asked]
    proposer = ReplayProposer(known, accuracy, n_draft)
    engine = run_schedule(drafted, limits, executor(VOCABULARY, CONTEXT, 32), text, proposer)
    assert answers_of(drafted) == answers_of(plain)
    stats = engine.get_stats()
    assert stats["cells_used"] == 0
    usages = [client.finish.usage for client in drafted]
    assert sum(usage.accepted_tokens for usage in usages) == stats["tokens_accepted"]
    proposed = sum(usage.accepted_tokens + usage.rejected_tokens for usage in usages)
    assert proposed == stats["tokens_proposed"]
    for client in drafted:
        first = next(piece.prompt for piece in client.events if isinstance(piece, Piece))
        assert first is not None


def drafting_engine(
    known: dict[tuple[int, ...], tuple[int, ...]], accuracy: float = 1.0
) -> InferenceEngine:
    options = LimitsConfig(page_size=4, adaptive_drafts=False)
    executor = NumpyExecutor(VOCABULARY, CONTEXT, 32)
    proposer = ReplayProposer(known, accuracy)
    return InferenceEngine(executor, byte_text(), options, proposer=proposer)


def test_accepted_tokens_come_as_one_piece_and_take_one_step() -> None:
    request = GenerationRequest((1, 2, 3), GREEDY, 13, ignore_eos=True, logprobs=0)
    client = Client(request)
    with drafting_engine({request.prompt: alone(request)}) as engine:
        client.submit(engine)
        assert client.finish.reason == "length"
        stats = engine.get_stats()
    pieces = [piece for piece in client.events if isinstance(piece, Piece) and piece.token_ids]
    # The prompt gives one token, two drafts of five six each.
    assert [len(piece.token_ids) for piece in pieces] == [1, 6, 6]
    assert [len(piece.logprobs) for piece in pieces] == [1, 6, 6]
    assert stats["steps"] == 3
    assert stats["accepted_length_mean"] == 5
    assert client.finish.usage.accepted_tokens == 10


def test_a_request_may_go_without() -> None:
    request = GenerationRequest((1, 2, 3), GREEDY, 13, ignore_eos=True, drafts=False)
    client = Client(request)
    with drafting_engine({request.prompt: alone(request)}) as engine:
        client.submit(engine)
        assert client.finish.usage.completion_tokens == 13
        assert engine.get_stats()["drafts"] == 0


class _Failing(Proposer):
    max_tokens = 4

    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        raise ExecutionError("the draft failed")


def test_an_answer_goes_on_when_its_draft_fails(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(GenerationRequest((1, 2, 3), GREEDY, 6, ignore_eos=True))
    run_schedule([client], LimitsConfig(adaptive_drafts=False), proposer=_Failing())
    assert client.token_ids == alone(client.request)
    assert client.finish.reason == "length"
    assert "no draft could be made" in caplog.text


def test_a_cancel_ends_an_answer_between_two_blocks() -> None:
    request = GenerationRequest((1, 2, 3), GREEDY, 40, ignore_eos=True)
    client = Client(request)
    with drafting_engine({request.prompt: alone(request)}) as engine:
        executor = engine._executor
        assert isinstance(executor, NumpyExecutor)
        steps = count()

        def before_step(step: Step) -> None:
            if next(steps) == 2:
                assert client.handle is not None
                client.handle.cancel()

        executor.before_step = before_step
        client.submit(engine)
        assert client.finish.reason == "cancelled"
        assert client.token_ids == alone(request)[: len(client.token_ids)]
        assert len(client.token_ids) == 13
        assert engine.get_stats()["cells_used"] == 0


def test_a_session_goes_on_from_an_answer_that_had_drafts() -> None:
    first = GenerationRequest((1, 2, 3), GREEDY, 9, ignore_eos=True, session_id="s")
    known = {first.prompt: alone(first)}
    with drafting_engine(known, 0.7) as engine:
        client = Client(first)
        client.submit(engine)
        assert client.finish.reason == "length"
        prompt = (*first.prompt, *client.token_ids, 5)
        second = GenerationRequest(prompt, GREEDY, 4, ignore_eos=True, session_id="s")
        known[prompt] = alone(second)
        client = Client(second)
        client.submit(engine)
        assert client.finish.usage.cached_tokens == len(prompt) - 2
        assert client.token_ids == alone(second)


def test_a_draft_takes_no_page_from_a_running_answer() -> None:
    cache = PageCache(Storage(n_pages=3, page_size=4))
    identity = np.arange(12, dtype=np.int32)
    assert cache.allocate_task(1, identity[:3], 2, 4, spare=0) == 0
    assert cache.grow(1, 12)
    cache.shrink(1, 4)
    assert cache.cells_used == 4
    assert cache.allocate_task(2, identity[4:12] + 9, 7, 8, spare=0) == 0
    assert not cache.grow(1, 5)


N_SAMPLES = 20_000
N_TOKENS = 4
LENGTH = 3


def histogram(
    kind: type[GenerationTask], first_seed: int, guess: NDArray[np.int32] | None
) -> NDArray[np.int64]:
    """How often each first three tokens came, of N_SAMPLES answers with seeds of their own.

    [N_TOKENS ** LENGTH]
    """
    logits: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def after(tokens: Sequence[int]) -> NDArray[np.float32]:
        key = tuple(tokens)
        if key not in logits:
            logits[key] = hash_logits(np.array(key), N_TOKENS) / 3
        return logits[key]

    def ignore(event: Event) -> None:
        assert not isinstance(event, Finish)

    counts = np.zeros((N_TOKENS,) * LENGTH, dtype=np.int64)
    token_bytes = TokenBytes(byte_text().tokenizer)
    prompt = PreparedPrompt.of_ids((1,))
    for seed in range(first_seed, first_seed + N_SAMPLES):
        params = SamplingParams(temperature=1.0, top_k=0, seed=seed)
        request = GenerationRequest((1,), params, 10)
        task = kind(request, prompt, 11, ignore, end_ids=(), token_bytes=token_bytes)
        task.start(0)
        task.advance(1, after([1])[None])
        while task.n_known < 1 + LENGTH:
            if guess is not None:
                task.draft(guess)
            n = 1 + task.n_drafted
            run = task.history[: task.n_computed + n].tolist()
            rows = [after(run[: task.n_computed + 1 + row]) for row in range(n)]
            task.advance(n, np.stack(rows))
        counts[tuple(task.history[1 : 1 + LENGTH])] += 1
    return counts.reshape(-1)


@pytest.fixture(scope="module")
def without_drafts() -> NDArray[np.int64]:
    return histogram(GenerationTask, 10**6, None)


def test_samples_with_drafts_have_the_model_s_distribution(
    without_drafts: NDArray[np.int64],
) -> None:
    drafted = histogram(GenerationTask, 0, np.array([2, 1], np.int32))
    statistic, degrees = compare(drafted, without_drafts)
    assert statistic < bound(degrees)


def test_a_wrong_rule_of_acceptance_would_be_noticed(without_drafts: NDArray[np.int64]) -> None:
    drafted = histogram(Redrawn, 0, np.array([2, 1], np.int32))
    statistic, degrees = compare(drafted, without_drafts)
    assert statistic > 10 * bound(degrees)
