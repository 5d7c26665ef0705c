"""The client with a real worker process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from parrot import SAYING

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.request import Finish, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.sampling import choice_seed
from astrai_cli.errors import (
    BackendUnavailableError,
    ContextOverflowError,
    EngineUnavailableError,
    InvalidInputError,
    ModelFileError,
    OverloadedError,
    RequestCancelledError,
    RequestTooLargeError,
    SessionBusyError,
    SessionNotFoundError,
)
from astrai_cli.models.text import TextModel
from astrai_cli.worker.client import RestartPolicy, WorkerClient, WorkerState
from astrai_cli.worker.config import WorkerConfig

ENDLESS = GenerationRequest((5, 6, 7), SamplingParams(seed=1), ignore_eos=True)


@asynccontextmanager
async def started(
    source: Path,
    *,
    restarts: RestartPolicy | None = None,
    max_waiting_events: int = 1024,
    **limits: object,
) -> AsyncIterator[WorkerClient]:
    config = WorkerConfig(source=source, backend="eager", limits=LimitsConfig(threads=1, **limits))
    client = WorkerClient(config, restarts=restarts, max_waiting_events=max_waiting_events)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def answer(client: WorkerClient, request: GenerationRequest) -> tuple[str, Finish]:
    text = ""
    async for event in client.generate_async(request):
        if isinstance(event, Finish):
            return text, event
        text += event.text
    raise AssertionError("no finish")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


async def nothing_runs(client: WorkerClient) -> bool:
    stats = await client.stats()
    return not stats["active"] and not stats["queue"] and not stats["cells_used"]


async def one_runs(client: WorkerClient) -> bool:
    stats = await client.stats()
    return bool(stats["active"] == 1 and not stats["queue"])


def test_many_answers_at_once_are_not_mixed_up(parrot: Path) -> None:
    text = TextModel.read(parrot)

    async def run() -> None:
        prompts = [text.encode_prompt(f"{n} <|im_start|>assistant\n") for n in range(20)]
        requests = [GenerationRequest(tuple(p), SamplingParams(temperature=0)) for p in prompts]
        async with started(parrot) as client:
            answers = await asyncio.gather(*(answer(client, each) for each in requests))
        for prompt, (said, finish) in zip(prompts, answers, strict=True):
            assert said == SAYING
            assert finish.reason == "stop"
            assert finish.usage.prompt_tokens == len(prompt)
        assert client.state is WorkerState.STOPPED

    asyncio.run(run())


def test_errors_of_the_engine_come_back_as_they_were(babbler: Path) -> None:
    async def run() -> None:
        async with started(babbler, max_context=64) as client:
            with pytest.raises(ContextOverflowError):
                await answer(client, GenerationRequest(tuple(range(100))))
            with pytest.raises(InvalidInputError):
                await answer(client, GenerationRequest((10**6,)))

    asyncio.run(run())


def test_a_request_over_the_limit_is_refused_and_others_run(babbler: Path) -> None:
    async def run() -> None:
        config = WorkerConfig(
            source=babbler,
            backend="eager",
            limits=LimitsConfig(threads=1, max_context=8192),
            max_request_bytes=4096,
        )
        client = WorkerClient(config)
        await client.start()
        try:
            with pytest.raises(RequestTooLargeError, match="4096 bytes"):
                await answer(client, GenerationRequest((5,) * 4000))
            fits = GenerationRequest((5,) * 1000, max_tokens=2, ignore_eos=True)
            assert (await answer(client, fits))[1].usage.completion_tokens == 2
        finally:
            await client.stop()

    asyncio.run(run())


def test_what_keeps_the_worker_from_starting_comes_back_as_it_was(tmp_path: Path) -> None:
    def start(source: Path, backend: str) -> None:
        asyncio.run(WorkerClient(WorkerConfig(source=source, backend=backend)).start())

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        start(broken, "eager")
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        start(tmp_path / "missing.gguf", "eager")


def test_an_unknown_backend_is_named(babbler: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="'abacus'"):
        asyncio.run(WorkerClient(WorkerConfig(source=babbler, backend="abacus")).start())


def test_closing_the_generator_frees_the_cells(babbler: Path) -> None:
    async def run() -> None:
        async with started(babbler, max_context=8192) as client:
            async with aclosing(client.generate_async(ENDLESS)) as events:
                await anext(events)
                assert not await nothing_runs(client)
            await until(lambda: nothing_runs(client))

    asyncio.run(run())


def test_more_requests_than_the_worker_admits_are_refused_at_once(babbler: Path) -> None:
    async def run() -> None:
        async with (
            started(babbler, max_inflight_requests=1) as client,
            aclosing(client.generate_async(ENDLESS)) as events,
        ):
            await anext(events)
            with pytest.raises(OverloadedError, match="1 requests"):
                await answer(client, ENDLESS)

    asyncio.run(run())


def test_when_to_try_again_comes_with_a_request_that_waited_too_long(babbler: Path) -> None:
    async def run() -> None:
        limits = {"max_decode_sequences": 1, "queue_timeout": 0.05, "max_context": 8192}
        async with (
            started(babbler, **limits) as client,
            aclosing(client.generate_async(replace(ENDLESS, max_tokens=2))) as short,
            aclosing(client.generate_async(ENDLESS)) as events,
        ):
            assert [event async for event in short]
            await anext(events)
            with pytest.raises(OverloadedError, match="no place") as caught:
                await answer(client, ENDLESS)
            assert caught.value.retry_after >= 1

    asyncio.run(run())


def test_choices_come_interleaved_and_each_is_the_answer_to_its_seed(babbler: Path) -> None:
    async def run() -> None:
        request = replace(ENDLESS, max_tokens=40)
        async with started(babbler) as client:
            order, texts = [], ["", "", ""]
            async for choice, event in client.generate_choices([request], 3):
                order.append(choice)
                if isinstance(event, Piece):
                    texts[choice] += event.text
            assert order != sorted(order)
            for index, text in enumerate(texts):
                sampling = SamplingParams(seed=choice_seed(1, index))
                alone = await answer(client, replace(request, sampling=sampling))
                assert alone[0] == text

    asyncio.run(run())


def test_several_prompts_are_numbered_one_after_the_other(babbler: Path) -> None:
    async def run() -> None:
        requests = [replace(ENDLESS, prompt=(token,), max_tokens=8) for token in (5, 6, 7)]
        async with started(babbler) as client:
            texts = [""] * 6
            async for choice, event in client.generate_choices(requests, 2):
                if isinstance(event, Piece):
                    texts[choice] += event.text
            for index, text in enumerate(texts):
                sampling = SamplingParams(seed=choice_seed(1, index % 2))
                alone = await answer(client, replace(requests[index // 2], sampling=sampling))
                assert alone[0] == text

    asyncio.run(run())


def test_choices_that_do_not_all_fit_are_refused_together(babbler: Path) -> None:
    async def run() -> None:
        async with started(babbler, max_inflight_requests=3, max_context=8192) as client:
            async with aclosing(client.generate_async(ENDLESS)) as events:
                await anext(events)
                with pytest.raises(OverloadedError, match="3 more do not fit"):
                    await anext(client.generate_choices([ENDLESS], 3))
                assert (await client.stats())["active"] == 1
                with pytest.raises(OverloadedError, match="2 more do not fit"):
                    await anext(client.generate_choices([ENDLESS, ENDLESS], 2))
                await until(lambda: one_runs(client))
                async with aclosing(client.generate_choices([ENDLESS], 2)) as choices:
                    await anext(choices)
                    assert (await client.stats())["active"] == 3
            await until(lambda: nothing_runs(client))

    asyncio.run(run())


def test_an_error_in_one_choice_ends_them_all(babbler: Path) -> None:
    async def run() -> None:
        limits = {"max_decode_sequences": 1, "queue_timeout": 0.05, "max_context": 8192}
        async with started(babbler, **limits) as client:
            answered: set[int] = set()
            with pytest.raises(OverloadedError, match="no place"):
                await read(client, answered)
            assert answered == {0}
            await until(lambda: nothing_runs(client))

    async def read(client: WorkerClient, answered: set[int]) -> None:
        async for choice, _ in client.generate_choices([ENDLESS], 2):
            answered.add(choice)

    asyncio.run(run())


def test_sessions_are_ended_and_their_loss_is_told(babbler: Path) -> None:
    async def run() -> None:
        lost: list[str | None] = []
        request = replace(ENDLESS, max_tokens=3, session_id="a")
        limits = {"max_sessions": 1, "evict_idle_sessions": True}
        async with started(babbler, **limits) as client:
            client.on_session_lost = lost.append
            await answer(client, request)
            await client.reset_session("a")
            await answer(client, request)
            await client.delete_session("a")
            with pytest.raises(SessionNotFoundError, match="'a'"):
                await client.reset_session("a")
            assert lost == []
            await answer(client, request)
            await answer(client, replace(request, session_id="b"))
            assert lost == ["a"]
            async with aclosing(client.generate_async(replace(ENDLESS, session_id="b"))) as events:
                await anext(events)
                with pytest.raises(SessionBusyError):
                    await client.delete_session("b")
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
                await until(lambda: has_lost_all(lost))

    async def has_lost_all(lost: list[str | None]) -> bool:
        return lost == ["a", None]

    asyncio.run(run())


def test_a_reader_that_falls_behind_is_cancelled_and_others_are_not(babbler: Path) -> None:
    async def run() -> None:
        async with (
            started(babbler, max_waiting_events=50, max_context=8192) as client,
            aclosing(client.generate_async(ENDLESS)) as slow,
        ):
            await anext(slow)
            other = await answer(client, GenerationRequest((9,), max_tokens=200, ignore_eos=True))
            assert other[1].usage.completion_tokens == 200
            await until(lambda: nothing_runs(client))
            with pytest.raises(RequestCancelledError, match="too slowly"):
                async for _ in slow:
                    pass

    asyncio.run(run())


def test_a_worker_of_another_protocol_is_refused(
    babbler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astrai_cli.worker.connection.PROTOCOL_VERSION", 0)
    with pytest.raises(EngineUnavailableError, match="speaks protocol"):
        asyncio.run(WorkerClient(WorkerConfig(source=babbler, backend="eager")).start())


def test_a_worker_that_hangs_does_not_hang_those_who_ask_for_its_statistics(babbler: Path) -> None:
    async def run() -> None:
        config = WorkerConfig(source=babbler, backend="eager", limits=LimitsConfig(threads=1))
        client = WorkerClient(config, query_timeout=0.5)
        await client.start()
        try:
            assert client.pid is not None
            os.kill(client.pid, signal.SIGSTOP)
            with pytest.raises(EngineUnavailableError, match="did not answer"):
                await client.stats()
            os.kill(client.pid, signal.SIGCONT)
            await until(lambda: answers(client))
        finally:
            await client.stop()

    async def answers(client: WorkerClient) -> bool:
        try:
            return bool(await client.stats())
        except EngineUnavailableError:
            return False

    asyncio.run(run())


def test_a_killed_worker_fails_its_requests_and_is_replaced(babbler: Path) -> None:
    async def run() -> None:
        async with started(babbler, max_context=8192) as client:
            async with aclosing(client.generate_async(ENDLESS)) as events:
                assert isinstance(await anext(events), Piece)
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
                with pytest.raises(EngineUnavailableError, match="SIGKILL"):
                    async for _ in events:
                        pass
            assert client.state is WorkerState.RESTARTING
            with pytest.raises(EngineUnavailableError, match="restarting"):
                await answer(client, ENDLESS)
            with pytest.raises(EngineUnavailableError, match="restarting"):
                await client.stats()

            await until(lambda: is_ready(client))
            short = GenerationRequest((5,), max_tokens=4, ignore_eos=True)
            assert (await answer(client, short))[1].usage.completion_tokens == 4
            assert client.restart_count == 1

    async def is_ready(client: WorkerClient) -> bool:
        return client.state is WorkerState.READY

    asyncio.run(run())


def test_a_worker_that_keeps_dying_stays_down(babbler: Path) -> None:
    async def run() -> None:
        policy = RestartPolicy(max_restarts=2, first_delay=0.01)
        async with started(babbler, restarts=policy) as client:
            for _ in range(3):
                pid = client.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: replaced_or_failed(client, pid))
            assert client.state is WorkerState.FAILED
            with pytest.raises(EngineUnavailableError, match="failed"):
                await answer(client, ENDLESS)

    async def replaced_or_failed(client: WorkerClient, old: int) -> bool:
        if client.state is WorkerState.FAILED:
            return True
        return client.state is WorkerState.READY and client.pid != old

    asyncio.run(run())


def test_delays_between_restarts_double_up_to_a_bound() -> None:
    policy = RestartPolicy(first_delay=0.5, max_delay=3.0)
    assert [policy.delay(recent) for recent in range(5)] == [0.0, 0.5, 1.0, 2.0, 3.0]


def test_stopping_lets_running_answers_end(babbler: Path) -> None:
    async def run() -> None:
        async with started(babbler, max_context=8192) as client:
            request = GenerationRequest((5,), max_tokens=300, ignore_eos=True)
            running = asyncio.create_task(answer(client, request))
            await until(lambda: is_active(client))
            await client.stop(timeout=60)
            _, finish = await running
            assert finish.usage.completion_tokens == 300
            with pytest.raises(EngineUnavailableError, match="stopped"):
                await answer(client, request)

    async def is_active(client: WorkerClient) -> bool:
        return bool((await client.stats())["active"])

    asyncio.run(run())
