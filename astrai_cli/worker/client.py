"""The server's side of the worker: requests by id, restarts, and what clients are told of both."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from astrai_cli.engine.request import Event, Finish, GenerationRequest
from astrai_cli.errors import (
    AstraiError,
    EngineUnavailableError,
    OverloadedError,
    RequestCancelledError,
    RequestTooLargeError,
    error_of,
)
from astrai_cli.worker.config import WorkerConfig
from astrai_cli.worker.connection import WorkerConnection
from astrai_cli.worker.frames import (
    Cancel,
    ErrorReport,
    FinishReport,
    FrameError,
    Generate,
    Hello,
    PieceReport,
    Report,
    Shutdown,
    StatsQuery,
    StatsReport,
)

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


class EventQueue:
    """The bounded buffer between the worker's reports and one reader."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._error: AstraiError | None = None
        self._ready = asyncio.Event()

    def put(self, event: Event) -> bool:
        """Add an event; False if there is no room for it. After the stream's end it is dropped."""
        if self._error is None:
            if len(self._events) >= self._capacity:
                return False
            self._events.append(event)
            self._ready.set()
        return True

    def fail(self, error: AstraiError) -> None:
        """End the stream with `error`, after the events that wait already."""
        self._error = self._error or error
        self._ready.set()

    async def get(self) -> Event:
        """The next event. Raises the error that ended the stream."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


class WorkerClient:
    """Runs requests in a worker process and keeps that process alive."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        restarts: RestartPolicy | None = None,
        max_waiting_events: int = 1024,
    ) -> None:
        self.state = WorkerState.STARTING
        self._config = config
        self._restarts = restarts or RestartPolicy()
        self._max_waiting_events = max_waiting_events
        self._connection: WorkerConnection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._hello: Hello | None = None
        self._ids = itertools.count(1)
        self._streams: dict[int, EventQueue] = {}
        self._queries: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.restart_count = 0

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
        for request_id, stream in self._streams.items():
            stream.fail(error)
            if self._connection is not None:
                self._connection.send_soon(Cancel(request_id))
        for query in self._queries.values():
            if not query.done():
                query.set_exception(error)

    def kill(self) -> None:
        """End the worker at once, without waiting for anything."""
        self.state = WorkerState.STOPPED
        if self._connection is not None:
            self._connection.kill()

    async def generate_async(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Run a request: its pieces, then its finish. Closing the generator cancels it.

        The finish is one of an answer that ended by itself; any other end raises.

        Raises EngineUnavailableError while there is no worker or when it dies,
        OverloadedError when it is full, RequestTooLargeError for one over
        max_request_bytes, RequestCancelledError when the caller takes events too
        slowly, and what the engine raises for the request.
        """
        connection = self._ready_connection()
        capacity = connection.hello.capacity.max_inflight_requests
        if len(self._streams) >= capacity:
            raise OverloadedError(f"{capacity} requests are running or waiting, which is the limit")
        request_id = next(self._ids)
        stream = self._streams[request_id] = EventQueue(self._max_waiting_events)
        finished = False
        try:
            await _send_request(connection, Generate(request_id, request))
            while not finished:
                event = await stream.get()
                if isinstance(event, Finish):
                    finished = True
                    _raise_if_failed(event)
                yield event
        finally:
            del self._streams[request_id]
            if not finished:
                connection.send_soon(Cancel(request_id))

    async def stats(self) -> dict[str, Any]:
        """The engine's statistics. Raises EngineUnavailableError."""
        connection = self._ready_connection()
        query_id = next(self._ids)
        query: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = query
        try:
            await connection.send(StatsQuery(query_id))
            return await query
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
        self.state = WorkerState.RESTARTING
        how = await connection.wait()
        log.warning("worker %d %s", connection.pid, how)
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
            case (
                PieceReport(id=request_id, piece=event) | FinishReport(id=request_id, finish=event)
            ):
                self._put(request_id, event)
            case ErrorReport(id=None):
                log.error("worker: %s", report.message)
            case ErrorReport(id=int(request_id)):
                if stream := self._streams.get(request_id):
                    stream.fail(report.error())
            case StatsReport(id=query_id):
                query = self._queries.get(query_id)
                if query is not None and not query.done():
                    query.set_result(report.stats)

    def _put(self, request_id: int, event: Event) -> None:
        stream = self._streams.get(request_id)
        if stream is None or stream.put(event):
            return
        stream.fail(
            RequestCancelledError(
                f"the client reads too slowly: {self._max_waiting_events} events were waiting"
            )
        )
        if self._connection is not None:
            self._connection.send_soon(Cancel(request_id))


async def _send_request(connection: WorkerConnection, command: Generate) -> None:
    try:
        await connection.send(command)
    except FrameError as error:
        raise RequestTooLargeError(f"the request is too large: {error} bytes") from error


def _raise_if_failed(finish: Finish) -> None:
    message = finish.error or "the answer was cut off"
    if finish.reason == "error":
        raise error_of(finish.error_code or AstraiError.code, message)
    if finish.reason == "cancelled":
        # Whoever cancels a request does not read on, so this was the engine's own doing.
        raise EngineUnavailableError(message)
