"""The scheduler on an executor whose logits betray any wrong page, position or mix-up."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from byte_tokenizer import VOCABULARY, byte_text
from engine_clients import CONTEXT, GREEDY, Client, alone, request, run_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from launching_executor import LaunchingNumpyExecutor
from numpy_executor import NumpyExecutor

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import ContiguousCache, Identity
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, GenerationRequest, SamplingParams
from astrai_cli.errors import EngineUnavailableError, OverloadedError
from backends.base import Step

_ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=23).map(tuple)
_shared = st.integers(1, 20).map(lambda n: tuple(range(n)))
prompts = st.one_of(
    st.builds(lambda first, rest: (first, *rest), st.integers(0, VOCABULARY - 1), _ids),
    st.builds(lambda prefix, rest: (*prefix, *rest[:4]), _shared, _ids),
)
samplings = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.5, 1.0, 2.0]),
        top_k=st.sampled_from([0, 5, 50]),
        top_p=st.sampled_from([0.7, 1.0]),
        seed=st.integers(0, 2**63 - 1),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    ),
)
requests = st.builds(
    GenerationRequest, prompt=prompts, sampling=samplings, max_tokens=st.integers(1, 20)
)
clients = st.builds(
    Client,
    request=requests,
    arrival=st.integers(0, 30),
    cancel_after=st.none() | st.integers(0, 40),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Client]:
    """A session's turns, each of which may go on from the last or start anew."""
    name = draw(st.sampled_from(["a", "b"]))
    turns: list[Client] = []
    history: tuple[int, ...] = ()
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()) or len(history) > CONTEXT - 16:
            history = ()
        prompt = (*history, *draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
        turn = GenerationRequest(prompt, GREEDY, draw(st.integers(1, 6)), session_id=name)
        turns.append(Client(turn, draw(st.integers(0, 30)), draw(st.none() | st.integers(0, 40))))
        history = prompt + alone(turn)
    return sorted(turns, key=lambda turn: turn.arrival)


@st.composite
def engine_limits(draw: st.DrawFn) -> LimitsConfig:
    """Limits of a cache that holds one context at least, and often not much more."""
    limits: dict[str, Any] = {"max_decode_sequences": draw(st.integers(1, 5))}
    limits["max_step_tokens"] = draw(st.integers(1, 32))
    limits["max_prefill_chunk"] = draw(st.integers(1, 32))
    limits["evict_idle_sessions"] = draw(st.booleans())
    limits["cache"] = draw(st.sampled_from(["contiguous", "paged", "paged"]))
    if limits["cache"] == "paged":
        limits["page_size"] = draw(st.sampled_from([1, 3, 4, 16]))
        if draw(st.booleans()):
            limits["max_cells"] = CONTEXT + 1 + 16 * draw(st.integers(0, 5))
        else:
            limits["prefix_cache_entries"] = draw(st.integers(0, 2))
    return LimitsConfig(**limits)


@settings(max_examples=150, deadline=None)
@given(
    clients=st.lists(clients, min_size=1, max_size=10),
    talks=st.lists(conversations(), max_size=2),
    limits=engine_limits(),
    executor=st.sampled_from([NumpyExecutor, LaunchingNumpyExecutor]),
)
def test_any_schedule_gives_each_request_what_it_gets_alone(
    clients: list[Client],
    talks: list[list[Client]],
    limits: LimitsConfig,
    executor: type[NumpyExecutor],
) -> None:
    clients = clients + [turn for talk in talks for turn in talk]
    engine = run_schedule(clients, limits, executor(VOCABULARY, CONTEXT, 32))
    for client in clients:
        expected = alone(client.request)
        if client.finish.reason == "cancelled":
            assert client.cancel_after is not None
            assert client.token_ids == expected[: len(client.token_ids)]
        else:
            assert client.finish.reason == "length"
            assert client.token_ids == expected
        usage = client.finish.usage
        assert usage.prompt_tokens == len(client.request.prompt) > usage.cached_tokens
        assert usage.completion_tokens == len(client.token_ids)
    stats = engine.get_stats()
    assert (stats["queue"], stats["active"]) == (0, 0)
    assert sum(stats["requests_finished"].values()) == len(clients)
    if not talks and not limits.prefix_cache_entries:
        assert stats["cells_used"] == 0


@settings(max_examples=30, deadline=None)
@given(
    clients=st.lists(clients, min_size=1, max_size=8),
    failing=st.sets(st.integers(0, 30), max_size=4),
    stop_at=st.integers(1, 60),
    kind=st.sampled_from([NumpyExecutor, LaunchingNumpyExecutor]),
)
def test_every_request_gets_one_finish_through_failures_and_shutdown(
    clients: list[Client], failing: set[int], stop_at: int, kind: type[NumpyExecutor]
) -> None:
    executor = kind(VOCABULARY, CONTEXT, 16)
    calls = 0
    stopped = threading.Event()

    def before_step(step: Step) -> None:
        nonlocal calls
        calls += 1
        if calls >= stop_at:
            stopped.set()
        if calls in failing:
            raise RuntimeError(f"broken at call {calls}")

    executor.before_step = before_step
    engine = InferenceEngine(executor, byte_text(), LimitsConfig(max_decode_sequences=3))
    for client in clients:
        client.submit(engine)
        if client.handle and client.cancel_after is not None and client.cancel_after % 2:
            client.handle.cancel()
    stopped.wait(0.01)
    engine.shutdown(timeout=0.0)
    assert executor.closed
    for client in clients:
        assert client.finish.reason in ("length", "cancelled", "error")
        assert client.token_ids == alone(client.request)[: len(client.token_ids)]
        if client.finish.reason == "error":
            assert client.finish.error_code == "execution_error"
            assert "broken at call" in (client.finish.error or "")
    assert engine.get_stats()["cells_used"] == 0


def run_all(
    clients: list[Client], executor_step_tokens: int = 32, **limits: int
) -> list[list[int]]:
    """Run clients, all but the first arriving in its first step; the token counts of each step."""
    executor = NumpyExecutor(VOCABULARY, CONTEXT, executor_step_tokens)

    def before_step(step: Step) -> None:
        for client in clients:
            client.submit(engine)

    executor.before_step = before_step
    with InferenceEngine(executor, byte_text(), LimitsConfig(**limits)) as engine:
        clients[0].submit(engine)
        for client in clients:
            assert client.finish.reason == "length"
    return [[n for _, n in step] for step in executor.steps]


def test_prompts_run_in_quarters_of_chunks_beside_answers() -> None:
    clients = [Client(request(2, 8)), Client(request(20, 3, first=9))]
    steps = run_all(clients, max_prefill_chunk=24)
    assert steps == [[2], [1, 6], [1, 6], [1, 6], [1, 2], [1, 1], [1, 1], [1]]


def test_prompts_without_answers_beside_them_run_in_chunks() -> None:
    steps = run_all([Client(request(40, 1))], max_step_tokens=32, max_prefill_chunk=24)
    assert steps == [[24], [16]]


def test_a_step_has_no_more_tokens_than_allowed() -> None:
    clients = [Client(request(3, 4, first=n)) for n in range(10, 13)]
    steps = run_all(clients, max_step_tokens=4)
    assert all(sum(step) <= 4 for step in steps)


def test_short_prompts_share_a_step_in_order_of_arrival() -> None:
    clients = [Client(request(3, 2, first=n)) for n in range(10, 15)]
    steps = run_all(clients, executor_step_tokens=32, max_decode_sequences=5)
    assert steps == [[3], [1, 3, 3, 2], [1, 1, 1, 3], [1, 1]]


def test_more_requests_than_slots_are_served_in_order_of_arrival() -> None:
    clients = [Client(request(2, 3, first=n)) for n in range(10, 16)]
    run_all(clients, max_decode_sequences=2)
    first_events = [client.first_event for client in clients]
    assert first_events == sorted(first_events)


@pytest.mark.parametrize("page_size", [CONTEXT, CONTEXT // 2])
def test_a_cache_as_large_as_all_contexts_runs_as_many_sequences_at_once(page_size: int) -> None:
    clients = [Client(request(3, CONTEXT - 3, first=n)) for n in range(10, 14)]
    steps = run_all(clients, max_decode_sequences=4, page_size=page_size)
    assert max(map(len, steps)) == 4


def test_cancelling_frees_the_slot_before_the_next_step() -> None:
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    engine = InferenceEngine(executor, byte_text(), LimitsConfig(max_decode_sequences=1))
    first, second = Client(request(2, 40)), Client(request(3, 2, first=7))

    def before_step(step: Step) -> None:
        if len(executor.steps) == 5 and first.handle:
            second.submit(engine)
            first.handle.cancel()

    executor.before_step = before_step
    with engine:
        first.submit(engine)
        assert first.finish.reason == "cancelled"
        assert first.finish.error_code == "cancelled"
        assert second.finish.reason == "length"
    assert len(first.token_ids) == 6
    assert executor.steps[6:] == [[(0, 3)], [(3, 1)]]


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on() -> None:
    executor = NumpyExecutor(VOCABULARY, CONTEXT)

    def before_step(step: Step) -> None:
        if len(executor.steps) == 2:
            executor.before_step = lambda step: None
            raise MemoryError("no more")

    executor.before_step = before_step
    with InferenceEngine(executor, byte_text()) as engine:
        broken, fine = Client(request(2, 5)), Client(request(2, 5))
        broken.submit(engine)
        assert broken.finish.reason == "error"
        assert broken.finish.error_code == "execution_error"
        assert "no more" in (broken.finish.error or "")
        fine.submit(engine)
        assert fine.finish.reason == "length"
        assert fine.token_ids == alone(fine.request)


def test_a_sink_that_raises_ends_its_own_request_only() -> None:
    def broken_sink(event: Event) -> None:
        raise ValueError("nobody home")

    with InferenceEngine(NumpyExecutor(VOCABULARY, CONTEXT), byte_text()) as engine:
        other = Client(request(2, 10))
        engine.submit(request(3, 10), broken_sink)
        other.submit(engine)
        assert other.finish.reason == "length"
        assert other.token_ids == alone(other.request)


def test_more_requests_than_allowed_in_flight_are_refused() -> None:
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    gate = threading.Event()

    def before_step(step: Step) -> None:
        assert gate.wait(30)

    executor.before_step = before_step
    limits = LimitsConfig(max_inflight_requests=3, max_decode_sequences=1)
    with InferenceEngine(executor, byte_text(), limits) as engine:
        clients = [Client(request(2, 2)) for _ in range(4)]
        for client in clients[:3]:
            client.submit(engine)
        with pytest.raises(OverloadedError, match="3 requests are in flight, of at most 3"):
            engine.submit(clients[3].request, clients[3].take)
        gate.set()
        engine.submit(clients[3].request, clients[3].take, wait=True)
        assert all(client.finish.reason == "length" for client in clients)


def test_shutdown_lets_requests_finish_within_its_time() -> None:
    engine = InferenceEngine(NumpyExecutor(VOCABULARY, CONTEXT), byte_text())
    client = Client(request(4, 40))
    client.submit(engine)
    engine.shutdown(timeout=30)
    assert client.finish.reason == "length"
    with pytest.raises(EngineUnavailableError, match="stopping"):
        Client(client.request).submit(engine)


class BrokenCache(ContiguousCache):
    def allocate_task(
        self, task_id: int, identity: Identity, n_reusable: int, n_positions: int, spare: int
    ) -> int | None:
        raise KeyError("the books are wrong")


def test_when_the_engine_thread_dies_its_requests_end_and_new_ones_are_refused() -> None:
    cache = BrokenCache(2, CONTEXT)
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    engine = InferenceEngine(executor, byte_text(), cache=cache)
    client = Client(request(2, 2))
    client.submit(engine)
    assert client.finish.reason == "error"
    assert client.finish.error_code == "engine_unavailable"
    with pytest.raises(EngineUnavailableError):
        Client(client.request).submit(engine)
    assert not engine.get_stats()["alive"]
    engine.shutdown()
