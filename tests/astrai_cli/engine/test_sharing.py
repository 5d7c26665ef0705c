"""Prefixes computed once, small pools, preemption and deadlines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import VOCABULARY, byte_text
from engine_clients import CONTEXT, GREEDY, Client, alone, request
from numpy_executor import NumpyExecutor, hash_logits

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import ContiguousCache, PageCache, Storage
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import GenerationRequest
from astrai_cli.engine.result import GenerateResult
from astrai_cli.engine.scheduler import InferenceScheduler
from astrai_cli.errors import DeadlineExceededError, InvalidInputError, OverloadedError
from backends.base import Step


def open_engine(context: int = CONTEXT, step_tokens: int = 32, **limits: Any) -> InferenceEngine:
    executor = NumpyExecutor(VOCABULARY, context, step_tokens)
    limits.setdefault("page_size", 4)
    return InferenceEngine(executor, byte_text(), LimitsConfig(**limits))


def executor_of(engine: InferenceEngine) -> NumpyExecutor:
    assert isinstance(engine._executor, NumpyExecutor)
    return engine._executor


def waiting_for(gate: threading.Event) -> Callable[[Step], None]:
    def before_step(step: Step) -> None:
        assert gate.wait(30)

    return before_step


def submit_together(engine: InferenceEngine, clients: list[Client]) -> None:
    """All but the first arrive before the first one's first step."""

    def before_step(step: Step) -> None:
        for client in clients:
            client.submit(engine)

    executor_of(engine).before_step = before_step
    clients[0].submit(engine)


@pytest.mark.parametrize("n_prefix", [600, 599])
# After the last of the oldest prompt, a step has room for a part of a page, or for several.
@pytest.mark.parametrize("step_tokens", [128, 151, 201])
def test_a_prefix_that_sixteen_requests_share_runs_once(n_prefix: int, step_tokens: int) -> None:
    prefix = tuple(range(200)) * 3
    clients = [
        Client(GenerationRequest((*prefix[:n_prefix], 200 + n, n), GREEDY, 5)) for n in range(16)
    ]
    with open_engine(1024, step_tokens=step_tokens, max_decode_sequences=16) as engine:
        submit_together(engine, clients)
        for client in clients:
            assert client.finish.reason == "length"
            assert client.token_ids == alone(client.request)
        stats = engine.get_stats()
    n_shared = n_prefix // 4 * 4
    assert stats["tokens_prefilled"] == n_prefix + 2 + 15 * (n_prefix + 2 - n_shared)
    assert stats["tokens_reused"] == 15 * n_shared
    n_prompt = 16 * (n_prefix + 2)
    assert stats["prefix_hit_rate"] == pytest.approx(15 * n_shared / n_prompt)
    assert [client.finish.usage.cached_tokens for client in clients] == [0] + [n_shared] * 15
    first_events = [client.first_event for client in clients]
    assert first_events == sorted(first_events)


def test_when_the_first_gives_up_the_next_goes_on_from_what_it_computed() -> None:
    clients = [Client(GenerationRequest((*range(40), n), GREEDY, 3)) for n in (1, 2, 3)]
    with open_engine(max_prefill_chunk=8) as engine:
        executor = executor_of(engine)

        def before_step(step: Step) -> None:
            for client in clients:
                client.submit(engine)
            if len(executor.steps) == 2 and clients[0].handle:
                clients[0].handle.cancel()

        executor.before_step = before_step
        clients[0].submit(engine)
        assert clients[0].finish.reason == "cancelled"
        for client in clients[1:]:
            assert client.finish.reason == "length"
            assert client.token_ids == alone(client.request)
        assert engine.get_stats()["tokens_prefilled"] == 41 + 1


def test_scores_are_never_taken_from_the_cache() -> None:
    ids = list(range(40))
    with open_engine() as engine:
        engine.generate(ids, temperature=0, max_tokens=2)
        logits = engine.score(ids)
    expected = [hash_logits(np.array(ids[: n + 1]), VOCABULARY) for n in range(40)]
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_with_a_quarter_of_the_cells_all_finish_in_order_and_unchanged(page_size: int) -> None:
    clients = [Client(request(5 + n % 7, 28 + n % 5, first=n)) for n in range(64)]
    needed = sum(len(c.request.prompt) + (c.request.max_tokens or 0) for c in clients)
    limits: dict[str, Any] = {
        "page_size": page_size,
        "max_cells": needed // 4,
        "max_decode_sequences": 32,
    }
    with open_engine(**limits) as engine:
        submit_together(engine, clients)
        for client in clients:
            assert client.finish.reason == "length"
            assert client.token_ids == alone(client.request)
        stats = engine.get_stats()
    first_events = [client.first_event for client in clients]
    assert first_events == sorted(first_events)
    assert stats["preemptions"] > 0
    assert stats["cells_used"] == 0


def test_the_youngest_is_preempted_and_keeps_its_tokens() -> None:
    clients = [Client(request(4, 40, first=n)) for n in (10, 20)]
    with open_engine(max_cells=CONTEXT + 8 + 1) as engine:
        submit_together(engine, clients)
        for client in clients:
            assert client.finish.reason == "length"
            assert client.token_ids == alone(client.request)
        assert engine.get_stats()["preemptions"] == 1
    counts = [len(step) for step in executor_of(engine).steps]
    together = counts.count(2)
    assert counts == [1] + [2] * together + [1] * (len(counts) - together - 1)
    assert 20 < together < 30


def test_preempted_scores_go_on_where_they_were() -> None:
    ids = list(range(40))
    with open_engine(max_cells=CONTEXT + 5, max_prefill_chunk=4) as engine:
        client = Client(request(4, 40))
        scores: list[Any] = []
        started = threading.Event()
        executor_of(engine).before_step = lambda step: started.set()
        client.submit(engine)
        assert started.wait(30)
        scorer = threading.Thread(target=lambda: scores.append(engine.score(ids)))
        scorer.start()
        scorer.join()
        assert client.finish.reason == "length"
        assert client.token_ids == alone(client.request)
    expected = [hash_logits(np.array(ids[: n + 1]), VOCABULARY) for n in range(40)]
    np.testing.assert_array_equal(scores[0], expected)


def test_requests_out_of_time_end_wherever_they_are() -> None:
    gate = threading.Event()
    with open_engine(max_decode_sequences=1, queue_timeout=0.02) as engine:
        executor = executor_of(engine)

        def before_step(step: Step) -> None:
            assert len(executor.steps) < 3 or gate.wait(30)

        executor.before_step = before_step
        results = [GenerateResult() for _ in range(3)]
        running = GenerationRequest((1, 2), GREEDY, 40, ignore_eos=True, timeout=0.01)
        engine.submit(running, results[0].put)
        engine.submit(request(2, 2), results[1].put)
        engine.submit(GenerationRequest((1, 2), GREEDY, 40, timeout=0.001), results[2].put)
        threading.Timer(0.05, gate.set).start()
        with pytest.raises(DeadlineExceededError, match=r"not complete within 0\.01 seconds"):
            results[0].wait_completion(30)
        with pytest.raises(OverloadedError, match=r"no place became free within 0\.02 seconds"):
            results[1].wait_completion(30)
        with pytest.raises(DeadlineExceededError, match=r"within 0\.001 seconds"):
            results[2].wait_completion(30)
        assert engine.generate([1, 2], max_tokens=3).usage.completion_tokens <= 3
        assert engine.get_stats()["requests_finished"]["error"] == 3


def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    gate = threading.Event()
    with open_engine(max_decode_sequences=1, max_queue=1) as engine:
        executor_of(engine).before_step = waiting_for(gate)
        clients = [Client(request(2, 2)) for _ in range(3)]
        for client in clients[:2]:
            client.submit(engine)
        with pytest.raises(OverloadedError, match="2 requests are in flight, of at most 2") as full:
            engine.submit(clients[2].request, clients[2].take)
        assert full.value.retry_after >= 1
        gate.set()
        assert all(client.finish.reason == "length" for client in clients[:2])


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with open_engine() as engine, pytest.raises(InvalidInputError, match="timeout is"):
        engine.generate("a", timeout=timeout)


@pytest.mark.parametrize("name", ["max_prefill_chunk", "max_step_tokens"])
def test_steps_larger_than_the_artifact_are_refused_with_both_numbers(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} is 33, but .* at most 32"):
        open_engine(**{name: 33})


def test_a_cache_that_cannot_hold_one_context_is_refused() -> None:
    executor = NumpyExecutor(VOCABULARY, CONTEXT)
    with pytest.raises(InvalidInputError, match=r"44 cells .* context of 48"):
        InferenceScheduler(executor, LimitsConfig(), PageCache(Storage(11, 4)))


def test_without_a_cache_a_scheduler_has_a_slot_for_each_sequence() -> None:
    scheduler = InferenceScheduler(NumpyExecutor(VOCABULARY, CONTEXT), LimitsConfig())
    assert isinstance(scheduler._cache, ContiguousCache)
    assert scheduler.get_stats()["cells_total"] == 8 * CONTEXT
    scheduler.shutdown(0)
