"""llama.cpp's `llama-server`, for the time that something is measured on it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_SECONDS = 120


@contextmanager
def llama_server(
    binary: Path,
    file: Path,
    *,
    clients: int,
    context: int,
    threads: int,
    extra: Sequence[str] = (),
) -> Iterator[str]:
    """The URL of a server with a slot of `context` tokens for each client; it ends with the block.

    Continuous batching is on, and so is the reuse of cached prompts, also of parts that
    moved. Raises RuntimeError where the server does not start.
    """
    port = _free_port()
    arguments = ["-m", file, "--host", "127.0.0.1", "--port", port, "-t", threads]
    arguments += ["-np", clients, "-c", clients * context, "-cb", "--cache-reuse", 256]
    arguments += ["--no-webui", "--log-disable", *extra]
    process = subprocess.Popen(
        [binary, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise RuntimeError(f"llama-server ended with {code} while starting")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"llama-server did not start within {START_SECONDS} seconds")
