"""One life of a worker process, from the server's side: spawn, hello, frames, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator

from astrai_cli.errors import EngineUnavailableError
from astrai_cli.worker.config import WorkerConfig
from astrai_cli.worker.frames import (
    COMMANDS,
    PROTOCOL_VERSION,
    REPORTS,
    Command,
    ErrorReport,
    FrameDecoder,
    FrameError,
    Hello,
    Report,
)

log = logging.getLogger(__name__)

READ_BYTES = 2**16


class WorkerConnection:
    """A running worker that has said hello. Made by `open`; used from one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, max_request_bytes: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._commands = COMMANDS.limited_to(max_request_bytes)
        self._decoder = FrameDecoder(REPORTS)
        self.hello: Hello

    @classmethod
    async def open(cls, config: WorkerConfig) -> WorkerConnection:
        """Start a worker and wait until it is ready.

        Raises the AstraiError that kept the worker from starting, of the same class.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "astrai_cli.worker.process",
            # What was not given stays so: a default gives way where a given value is refused.
            config.model_dump_json(exclude_unset=True),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        connection = cls(process, config.max_request_bytes)
        try:
            connection.hello = await connection._read_hello()
        except BaseException:
            connection.kill()
            await process.wait()
            raise
        return connection

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, command: Command) -> None:
        """Send a command, waiting while the pipe is full. Raises FrameError if it is too long."""
        self.send_soon(command)
        with contextlib.suppress(ConnectionError):
            await self._stdin.drain()

    def send_soon(self, command: Command) -> None:
        """Send a small command without waiting. A dead worker is noticed by the reader instead."""
        line = self._commands.encode(command)
        if not self._stdin.is_closing():
            self._stdin.write(line)

    async def reports(self) -> AsyncIterator[list[Report]]:
        """The worker's reports as they arrive, several at a time, until it closes its stdout."""
        while data := await self._stdout.read(READ_BYTES):
            reports: list[Report] = []
            for report in self._decoder.feed(data):
                if isinstance(report, FrameError):
                    log.error("worker %d sent no frame: %s", self.pid, report)
                else:
                    reports.append(report)
            yield reports

    async def wait(self, timeout: float | None = None) -> str:
        """Wait for the process to end, killing it after `timeout` seconds; how it ended."""
        try:
            code = await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _read_hello(self) -> Hello:
        async for reports in self.reports():
            for report in reports:
                if isinstance(report, ErrorReport):
                    raise report.error()
                if isinstance(report, Hello):
                    if report.protocol != PROTOCOL_VERSION:
                        raise EngineUnavailableError(
                            f"worker speaks protocol {report.protocol}, not {PROTOCOL_VERSION}"
                        )
                    return report
        raise EngineUnavailableError(f"the worker {await self.wait()} while starting")
