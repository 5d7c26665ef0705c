"""A server on this machine, for the time that something is measured on it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.loading import RunnableModel
from astrai_cli.serving.server import run_server


@contextmanager
def server(model: RunnableModel, limits: LimitsConfig) -> Iterator[str]:
    """The URL of a server on a free port, as `astrai serve` runs it; it ends with the block."""
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    serve = ServeConfig(port=0, log_level="warning")
    process = context.Process(
        target=run_server, args=(model.source, model.backend, limits, serve, ready.put)
    )
    process.start()
    try:
        yield ready.get(timeout=120)
    finally:
        process.terminate()
        process.join()
