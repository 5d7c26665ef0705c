"""A server on this machine, for the time that something is measured on it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.loading import RunnableModel
from astrai_cli.serving.server import run_server


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running server and the id of its process."""

    url: str
    pid: int


@contextmanager
def server_process(
    model: RunnableModel, limits: LimitsConfig, serve: ServeConfig
) -> Iterator[LocalServer]:
    """A server as `astrai serve` runs it; it ends with the block."""
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(
        target=run_server, args=(model.source, model.backend, limits, serve, ready.put)
    )
    process.start()
    try:
        url = ready.get(timeout=120)
        assert process.pid is not None
        yield LocalServer(url, process.pid)
    finally:
        process.terminate()
        process.join()


@contextmanager
def server(model: RunnableModel, limits: LimitsConfig) -> Iterator[str]:
    """The URL of a server on a free port."""
    with server_process(model, limits, ServeConfig(port=0, log_level="warning")) as local:
        yield local.url
