"""The server's side of the worker: requests by id, restarts, and what clients are told of both."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from astrai_cli.engine.request import Event, Finish, GenerationRequest
from astrai_cli.errors import (
    AstraiError,
    EngineUnavailableError,
    RequestCancelledError,
    RequestTooLargeError,
    error_of,
)
from astrai_cli.worker.config import WorkerConfig
from astrai_cli.worker.connection import WorkerConnection
from astrai_cli.worker.frames import (
    Cancel,
    Done,
    EndSession,
    ErrorReport,
    FinishReport,
    FrameError,
    Generate,
    Hello,
    PieceReport,
    Report,
    SessionEvicted,
    Shutdown,
    StatsQuery,
    StatsReport,
)
from astrai_cli.worker.streams import ChoiceEvent, EventQueue

log = logging.getLogger(__name__)


class WorkerState(Enum):
    """What `/health` reports."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a dead worker is started again: at once, then after delays that double.

    After `max_restarts` within `window` seconds it stays down.
    """

    max_restarts: int = 5
    window: float = 60.0
    first_delay: float = 0.5
    max_delay: float = 8.0

    def delay(self, recent: int) -> float:
        """Seconds to wait before the next start, after `recent` restarts within the window."""
        if recent == 0:
            return 0.0
        return min(self.first_delay * 2.0 ** (recent - 1), self.max_delay)


class WorkerClient:
    """Runs requests in a worker process and keeps that process alive."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        restarts: RestartPolicy | None = None,
        max_waiting_events: int = 1024,
        query_timeout: float = 10.0,
    ) -> None:
        """query_timeout: seconds in which the worker must tell its statistics or end a session."""
        self.state = WorkerState.STARTING
        self._config = config
        self._restarts = restarts or RestartPolicy()
        self._max_waiting_events = max_waiting_events
        self._query_timeout = query_timeout
        self._connection: WorkerConnection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._hello: Hello | None = None
        self._may_end = False
        self._ids = itertools.count(1)
        # By the id of an answer: its number among the choices, and where its events go.
        self._streams: dict[int, tuple[int, EventQueue]] = {}
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self.restart_count = 0
        self.on_session_lost: Callable[[str | None], None] = lambda session_id: None
        """Told of a session that was evicted; None: all of them, with their worker."""

    @property
    def hello(self) -> Hello:
        """What the worker said of its model and capacity. Raises before it has said so."""
        if self._hello is None:
            raise EngineUnavailableError("the engine is starting")
        return self._hello

    @property
    def max_request_bytes(self) -> int:
        """Most bytes of a request on its way to the worker."""
        return self._config.max_request_bytes

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        return self._connection.pid if self._connection else None

    async def start(self) -> Hello:
        """Start the worker; its hello. Raises the AstraiError that kept it from starting."""
        connection = await WorkerConnection.open(self._config)
        self._accept(connection)
        self._supervisor = asyncio.create_task(self._supervise(connection), name="supervisor")
        return connection.hello

    @property
    def running_count(self) -> int:
        """Answers that have not ended."""
        return len(self._streams)

    def expect_end(self) -> None:
        """The server is stopping: a worker that ends, as by the same signal, is not replaced."""
        self._may_end = True

    async def stop(self, timeout: float = 5.0) -> None:
        """Let running requests end within `timeout` seconds, then end the worker."""
        self.state = WorkerState.STOPPED
        connection = self._connection
        if connection is not None:
            connection.send_soon(Shutdown())
            await connection.wait(timeout)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self.cancel_all(EngineUnavailableError("the server is shutting down"))

    def cancel_all(self, error: AstraiError) -> None:
        """End every running request with `error`."""
        for answer_id, (_, stream) in self._streams.items():
            stream.fail(error)
            if self._connection is not None:
                self._connection.send_soon(Cancel(answer_id))
        for query in self._queries.values():
            if not query.done():
                query.set_exception(error)

    def kill(self) -> None:
        """End the worker at once, without waiting for anything."""
        self.state = WorkerState.STOPPED
        if self._connection is not None:
            self._connection.kill()

    async def generate_async(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Run a request: its pieces, then its finish; see generate_choices."""
        async with aclosing(self.generate_choices([request], 1)) as events:
            async for _, event in events:
                yield event

    async def generate_choices(
        self, requests: Sequence[GenerationRequest], n: int
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Run requests n times each: all pieces as they come, and a finish of each answer.

        The answers to the first one are numbered 0 to n - 1, those to the next go on from there.
        A finish is one of an answer that ended by itself; any other end raises and
        cancels the other answers, as closing the generator does.

        Raises EngineUnavailableError while there is no worker or when it dies,
        OverloadedError when it has no room for all, RequestTooLargeError for a request
        over max_request_bytes, RequestCancelledError when the caller takes events too
        slowly, and what the engine raises for the request.
        """
        connection = self._ready_connection()
        ids = [next(self._ids) for _ in range(n * len(requests))]
        stream = EventQueue(self._max_waiting_events * len(ids))
        self._streams.update((answer_id, (choice, stream)) for choice, answer_id in enumerate(ids))
        running = set(ids)
        try:
            for request, first_id in zip(requests, ids[::n], strict=True):
                await _send_request(connection, Generate(first_id, request, n))
            while running:
                choice, event = await stream.get()
                if isinstance(event, Finish):
                    running.remove(ids[choice])
                    _raise_if_failed(event)
                yield choice, event
        finally:
            for answer_id in ids:
                del self._streams[answer_id]
            for answer_id in running:
                connection.send_soon(Cancel(answer_id))

    async def stats(self) -> dict[str, Any]:
        """The engine's statistics. Raises EngineUnavailableError."""
        stats: dict[str, Any] = await self._query(StatsQuery)
        return stats

    async def reset_session(self, session_id: str) -> None:
        """Forget a session's history.

        Raises SessionNotFoundError, SessionBusyError, EngineUnavailableError.
        """
        await self._query(partial(EndSession, session_id=session_id, how="reset"))

    async def delete_session(self, session_id: str) -> None:
        """Forget a session altogether. Raises as reset_session does."""
        await self._query(partial(EndSession, session_id=session_id, how="delete"))

    async def _query(self, command: Callable[[int], StatsQuery | EndSession]) -> Any:
        """What the worker answers to a command made with an id."""
        connection = self._ready_connection()
        query_id = next(self._ids)
        query = self._queries[query_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._query_timeout):
                await connection.send(command(query_id))
                return await query
        except TimeoutError:
            raise EngineUnavailableError(
                f"the engine did not answer within {self._query_timeout:.0f} seconds"
            ) from None
        finally:
            del self._queries[query_id]

    def _ready_connection(self) -> WorkerConnection:
        if self._connection is None or self.state is not WorkerState.READY:
            raise EngineUnavailableError(f"the engine is {self.state.value}")
        return self._connection

    def _accept(self, connection: WorkerConnection) -> None:
        self._connection = connection
        self._hello = connection.hello
        self.state = WorkerState.READY

    async def _supervise(self, connection: WorkerConnection) -> None:
        """Read the worker's reports; when it dies, start another until the policy says stop."""
        starts: deque[float] = deque(maxlen=self._restarts.max_restarts)
        clock = asyncio.get_running_loop().time
        current: WorkerConnection | None = connection
        while True:
            if current is not None:
                await self._serve(current)
            if self.state is WorkerState.STOPPED:
                return
            recent = sum(start > clock() - self._restarts.window for start in starts)
            if recent >= self._restarts.max_restarts:
                self.state = WorkerState.FAILED
                log.error("the worker died %d times and stays down", recent + 1)
                return
            await asyncio.sleep(self._restarts.delay(recent))
            starts.append(clock())
            current = await self._restart()

    async def _serve(self, connection: WorkerConnection) -> None:
        """Deliver the worker's reports until it has ended, then tell whoever was waiting."""
        async for reports in connection.reports():
            for report in reports:
                self._deliver(report)
        self._connection = None
        if self.state is WorkerState.STOPPED:
            return
        self.state = WorkerState.STOPPED if self._may_end else WorkerState.RESTARTING
        how = await connection.wait()
        if not self._may_end:
            log.warning("worker %d %s", connection.pid, how)
        self.on_session_lost(None)
        self.cancel_all(EngineUnavailableError(f"the worker process {how} during the request"))

    async def _restart(self) -> WorkerConnection | None:
        self.restart_count += 1
        try:
            connection = await WorkerConnection.open(self._config)
        except (AstraiError, OSError) as error:
            log.error("the worker did not start: %s", error)
            return None
        self._accept(connection)
        return connection

    def _deliver(self, report: Report) -> None:
        match report:
            case PieceReport(id=answer_id, piece=event) | FinishReport(id=answer_id, finish=event):
                self._put(answer_id, event)
            case ErrorReport(id=None):
                log.error("worker: %s", report.message)
            case ErrorReport(id=int(command_id)):
                self._fail(command_id, report.error())
            case StatsReport(id=query_id):
                self._answer(query_id, report.stats)
            case Done(id=query_id):
                self._answer(query_id, None)
            case SessionEvicted(session_id=session_id):
                self.on_session_lost(session_id)

    def _fail(self, command_id: int, error: AstraiError) -> None:
        if command_id in self._streams:
            self._streams[command_id][1].fail(error)
        query = self._queries.get(command_id)
        if query is not None and not query.done():
            query.set_exception(error)

    def _answer(self, query_id: int, result: Any) -> None:
        query = self._queries.get(query_id)
        if query is not None and not query.done():
            query.set_result(result)

    def _put(self, answer_id: int, event: Event) -> None:
        if answer_id not in self._streams:
            return
        choice, stream = self._streams[answer_id]
        if stream.put((choice, event)):
            return
        stream.fail(
            RequestCancelledError(
                f"the client reads too slowly: {self._max_waiting_events} events were waiting"
            )
        )
        if self._connection is not None:
            self._connection.send_soon(Cancel(answer_id))


async def _send_request(connection: WorkerConnection, command: Generate) -> None:
    try:
        await connection.send(command)
    except FrameError as error:
        raise RequestTooLargeError(f"the request is too large: {error} bytes") from error


def _raise_if_failed(finish: Finish) -> None:
    message = finish.error or "the answer was cut off"
    if finish.reason == "error":
        code = finish.error_code or AstraiError.code
        raise error_of(code, message, retry_after=finish.retry_after)
    if finish.reason == "cancelled":
        # Whoever cancels a request does not read on, so this was the engine's own doing.
        raise EngineUnavailableError(message)
