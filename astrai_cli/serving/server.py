"""`astrai serve`: bind, start the worker, serve, and end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.errors import EngineUnavailableError, InvalidInputError
from astrai_cli.logs import configure_logging
from astrai_cli.models.text import TextModel
from astrai_cli.serving.app import create_app
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.transport.access import Access
from astrai_cli.serving.transport.connection import Bounds, protocol_of
from astrai_cli.serving.transport.middleware import log as access_log
from astrai_cli.serving.transport.origins import is_loopback
from astrai_cli.serving.transport.tls import server_context
from astrai_cli.worker.client import WorkerClient
from astrai_cli.worker.config import WorkerConfig

log = logging.getLogger(__name__)

BACKLOG = 1024
# What the system keeps for a client that does not read; by itself it would take megabytes.
SEND_BUFFER_BYTES = 2**18
# Those of the worker, the libraries and the answer to one who is refused.
FILES_BESIDE_CONNECTIONS = 64
# What a client that does not read may add to the shutdown's own timeout.
SEND_GRACE_SECONDS = 5


def run_server(
    source: Path,
    backend: str,
    limits: LimitsConfig,
    serve: ServeConfig,
    on_ready: Callable[[str], None],
) -> None:
    """Serve a model until SIGTERM or SIGINT; `on_ready` gets the URL once it can answer.

    source: an artifact folder, or a GGUF file for a backend that runs it as it is.
    At the signal running answers may finish within the configured time; a second
    signal ends everything at once. Raises InvalidInputError where the address cannot
    be had, and the AstraiError that keeps the model from being opened.
    """
    tls = server_context(serve.tls_certfile, serve.tls_keyfile)
    with contextlib.closing(_listen(serve.host, serve.port)) as listener:
        access = Access.of(serve, loopback=is_loopback(listener.getsockname()[0]))
        config = WorkerConfig(
            source=source,
            backend=backend,
            limits=limits,
            max_request_bytes=serve.max_request_bytes,
            log_level=serve.log_level,
        )
        client = WorkerClient(config)
        engine = ServingEngine.create(TextModel.read(source, limits.hf_tokenizer), client, serve)
        configure_logging(serve.log_level, "server")
        access_log.disabled = not serve.access_log
        _allow_connections(serve.max_connections)
        web = _web_config(engine, access, serve, tls)
        uvloop.run(_Server(client, web, listener, serve.shutdown_timeout, on_ready).run())


def _listen(host: str, port: int) -> socket.socket:
    """Claim the address before the model is loaded, so that a busy one is known at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Python adds the address, which is in the message already.
        reason = (error.strerror or str(error)).partition(" (while")[0].lower()
        if error.errno == errno.EADDRINUSE:
            reason += "; choose another with --port (0 picks a free one)"
        raise InvalidInputError(
            f"cannot listen on {host} port {port}: {reason}", param="port"
        ) from error
    # Connections take it over.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return listener


def _allow_connections(count: int) -> None:
    """Raise the limit of open files to that of connections, as each of them is one."""
    needed = count + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        log.warning("max_connections is %d, but this process may open only %d files", count, most)


class _Uvicorn(uvicorn.Server):
    """uvicorn, with signals left to us and word given when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


def _web_config(
    engine: ServingEngine, access: Access, serve: ServeConfig, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(engine, access),
        http=protocol_of(Bounds.of(serve)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
        timeout_graceful_shutdown=int(serve.shutdown_timeout) + SEND_GRACE_SECONDS,
    )


class _Server:
    def __init__(
        self,
        client: WorkerClient,
        config: uvicorn.Config,
        listener: socket.socket,
        shutdown_timeout: float,
        on_ready: Callable[[str], None],
    ) -> None:
        self._client = client
        self._listener = listener
        self._shutdown_timeout = shutdown_timeout
        self._stopping = asyncio.Event()
        host, port = listener.getsockname()[:2]
        scheme = "https" if config.is_ssl else "http"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._uvicorn = _Uvicorn(config, lambda: on_ready(url))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            if await self._unless_stopped(self._client.start()):
                await self._serve()
        finally:
            await self._client.stop()

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        if not await self._unless_stopped(asyncio.shield(serving)):
            self._uvicorn.should_exit = True
            self._tell_what_runs()
            overdue = asyncio.get_running_loop().call_later(
                self._shutdown_timeout,
                self._client.cancel_all,
                EngineUnavailableError("the server is shutting down"),
            )
            await serving
            overdue.cancel()

    def _tell_what_runs(self) -> None:
        if count := self._client.running_count:
            noun = "answer" if count == 1 else "answers"
            log.info("finishing %d %s; again to stop at once", count, noun)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> bool:
        """Wait for `work` and return True; at a signal cancel it and return False."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(stop, task, return_exceptions=True)

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            self._client.kill()
            sys.stderr.flush()
            os._exit(128 + number)
        self._client.expect_end()
        self._stopping.set()
