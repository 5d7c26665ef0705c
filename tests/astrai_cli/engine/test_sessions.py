"""Sessions: what goes on from one request to the next, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from byte_tokenizer import VOCABULARY, byte_text
from engine_clients import GREEDY, Client, alone
from numpy_executor import NumpyExecutor

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import GenerationRequest
from astrai_cli.errors import (
    InvalidInputError,
    OverloadedError,
    SessionBusyError,
    SessionNotFoundError,
)
from backends.base import Step

CONTEXT = 512


def open_engine(**limits: Any) -> InferenceEngine:
    executor = NumpyExecutor(VOCABULARY, CONTEXT, 32)
    return InferenceEngine(executor, byte_text(), LimitsConfig(**limits))


@pytest.fixture(params=["contiguous", "paged"])
def engine(request: pytest.FixtureRequest) -> Iterator[InferenceEngine]:
    with open_engine(cache=request.param, max_sessions=2, max_decode_sequences=2) as engine:
        yield engine


def executor_of(engine: InferenceEngine) -> NumpyExecutor:
    assert isinstance(engine._executor, NumpyExecutor)
    return engine._executor


def waiting_for(gate: threading.Event) -> Callable[[Step], None]:
    def before_step(step: Step) -> None:
        assert gate.wait(30)

    return before_step


def turn(prompt: tuple[int, ...], session_id: str | None = "s", max_tokens: int = 4) -> Client:
    return Client(
        GenerationRequest(prompt, GREEDY, max_tokens, ignore_eos=True, session_id=session_id)
    )


def say(engine: InferenceEngine, prompt: tuple[int, ...], session_id: str | None = "s") -> int:
    """Ask, check the answer, and tell how many tokens were run for the prompt."""
    before = engine.get_stats()["tokens_prefilled"]
    client = turn(prompt, session_id)
    client.submit(engine)
    assert client.finish.reason == "length"
    assert client.token_ids == alone(client.request)
    return int(engine.get_stats()["tokens_prefilled"]) - before


def answer_to(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return alone(GenerationRequest(prompt, GREEDY, 4))


def test_each_of_twenty_turns_runs_only_what_is_new(engine: InferenceEngine) -> None:
    history: tuple[int, ...] = ()
    for number in range(20):
        more = tuple(range(number, number + 7))
        # The last token of an answer was never run itself.
        assert say(engine, history + more) == 7 + (number > 0)
        history += more
        history += answer_to(history)
    assert engine.get_stats()["sessions"] == 1


@pytest.mark.parametrize("what", ["equal", "shorter", "different"])
def test_what_does_not_go_on_exactly_is_run_anew(what: str) -> None:
    first = tuple(range(40))
    history = first + answer_to(first)
    prompt = {"equal": history, "shorter": first[:30], "different": (*history[:-1], 0, 1)}[what]
    with open_engine(cache="contiguous") as engine:
        say(engine, first)
        assert say(engine, prompt) == len(prompt)
    with open_engine(cache="paged", page_size=8) as engine:
        say(engine, first)
        assert say(engine, prompt) <= len(prompt) - 24


def test_a_turn_that_was_cancelled_is_not_gone_on_from(engine: InferenceEngine) -> None:
    first = tuple(range(40))
    client = turn(first, max_tokens=100)
    executor = executor_of(engine)

    def before_step(step: object) -> None:
        if len(executor.steps) == 10 and client.handle:
            client.handle.cancel()

    executor.before_step = before_step
    client.submit(engine)
    assert client.finish.reason == "cancelled"
    assert engine.last_turn("s") is None
    prompt = first + client.token_ids + (1,)
    assert say(engine, prompt) > 2


def test_the_last_turn_tells_ids(engine: InferenceEngine) -> None:
    prompt = tuple(b"What is it?")
    answer = engine.generate(list(prompt), temperature=0, max_tokens=4, session_id="s")
    last = engine.last_turn("s")
    assert last is not None
    assert tuple(last.history.tolist()) == prompt + answer.token_ids
    assert last.n_prompt == len(prompt)


def test_requests_of_a_session_run_one_after_the_other_and_let_others_pass(
    engine: InferenceEngine,
) -> None:
    talk = [turn((1, 2), max_tokens=30), turn((3, 4))]
    other = turn((5, 6), None, max_tokens=3)

    def before_step(step: object) -> None:
        for client in (*talk, other):
            client.submit(engine)

    executor_of(engine).before_step = before_step
    talk[0].submit(engine)
    for client in (*talk, other):
        assert client.finish.reason == "length"
        assert client.token_ids == alone(client.request)
    assert talk[0].first_event < other.first_event < talk[1].first_event


def test_sessions_stay_until_they_are_deleted(engine: InferenceEngine) -> None:
    for name in "ab":
        say(engine, (1, 2, 3), name)
    for name in ("c", None):
        with pytest.raises(
            OverloadedError, match="2 sessions are open, of at most 2; idle ones"
        ) as caught:
            engine.submit(turn((1,), name).request, print)
        # However long a client waits.
        assert caught.value.retry_after is None
    with pytest.raises(OverloadedError):
        engine.generate("waiting for it would be in vain")
    engine.delete_session("a")
    say(engine, (1, 2), None)
    say(engine, (1, 2), "c")
    with pytest.raises(SessionNotFoundError, match="no session 'a'"):
        engine.last_turn("a")
    for name in "bc":
        engine.delete_session(name)
    say(engine, (5,), None)
    assert engine.get_stats()["cells_used"] == 0


def test_the_session_idle_for_longest_is_evicted_where_that_is_wanted() -> None:
    with open_engine(max_sessions=2, evict_idle_sessions=True) as engine:
        for name in ("a", "b", "a", "c"):
            say(engine, (1, 2, 3), name)
        assert engine.last_turn("a") is not None
        with pytest.raises(SessionNotFoundError):
            engine.last_turn("b")
        say(engine, (1, 2), None)
        assert engine.get_stats()["sessions"] == 1


def test_active_and_queued_sessions_are_not_evicted() -> None:
    gate = threading.Event()
    with open_engine(max_sessions=2, evict_idle_sessions=True, max_decode_sequences=1) as engine:
        executor_of(engine).before_step = waiting_for(gate)
        clients = [turn((1,), "a"), turn((2,), "b")]
        for client in clients:
            client.submit(engine)
        with pytest.raises(OverloadedError, match=r"2 sessions are open, of at most 2$"):
            engine.submit(turn((3,), "c").request, print)
        for change in (engine.reset_session, engine.delete_session):
            with pytest.raises(SessionBusyError, match="'b' has requests in flight"):
                change("b")
        gate.set()
        assert all(client.finish.reason == "length" for client in clients)


def test_a_reset_session_starts_anew_and_frees_its_cells(engine: InferenceEngine) -> None:
    first = tuple(range(10))
    say(engine, first)
    engine.reset_session("s")
    assert engine.last_turn("s") is None
    assert say(engine, (*first, *answer_to(first), 1)) == 15
    with pytest.raises(SessionNotFoundError):
        engine.reset_session("t")


def test_a_session_whose_first_request_gave_nothing_is_no_session() -> None:
    gate = threading.Event()
    with open_engine(max_decode_sequences=1) as engine:
        executor_of(engine).before_step = waiting_for(gate)
        clients = [turn((1,), None), turn((2,), "new")]
        for client in clients:
            client.submit(engine)
        assert clients[1].handle
        clients[1].handle.cancel()
        gate.set()
        assert clients[1].finish.reason == "cancelled"
        assert clients[0].finish.reason == "length"
        assert engine.get_stats()["sessions"] == 0


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_idle_sessions_give_their_cells_to_requests_that_need_them(cache: str) -> None:
    limits = {"cache": cache, "page_size": 8, "max_decode_sequences": 2}
    with open_engine(**limits, max_cells=2 * CONTEXT + 1) as engine:
        prompts = [tuple([n] * 400) for n in range(4)]
        for number, prompt in enumerate(prompts):
            say(engine, prompt, str(number))
        assert engine.get_stats()["sessions"] == 4
        assert engine.get_stats()["preemptions"] == 0
        last = prompts[3] + answer_to(prompts[3])
        assert say(engine, (*last, 1), "3") == 2


def test_a_session_waits_for_room_without_losing_its_own_cells() -> None:
    first = tuple(range(100))
    with open_engine(page_size=8, max_cells=CONTEXT + 1) as engine:
        say(engine, first)
        history = first + answer_to(first)
        long = turn(tuple(range(200, 250)) * 7, None, max_tokens=20)
        more = turn((*history, *range(60)))

        def before_step(step: object) -> None:
            more.submit(engine)

        executor_of(engine).before_step = before_step
        long.submit(engine)
        for client in (long, more):
            assert client.finish.reason == "length"
            assert client.token_ids == alone(client.request)
        assert long.finish.usage.cached_tokens == 0
        assert more.finish.usage.cached_tokens == len(history) - 1
        assert long.first_event < more.first_event


def test_a_session_id_has_bounds(engine: InferenceEngine) -> None:
    for name in ("", "x" * 257):
        with pytest.raises(InvalidInputError, match=f"session_id has {len(name)} characters"):
            engine.submit(turn((1,), name).request, print)
    with pytest.raises(InvalidInputError, match="session_id has control characters"):
        engine.submit(turn((1,), "a\nb").request, print)
