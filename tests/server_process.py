"""A real server in a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

_RUN = """
import json, sys
from pathlib import Path
from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.errors import AstraiError
from astrai_cli.serving.server import run_server

options = json.loads(sys.argv[1])
try:
    run_server(
        Path(options["source"]),
        options["backend"],
        LimitsConfig(**options["limits"]),
        ServeConfig(**options["serve"]),
        lambda url: print(url, flush=True),
    )
except AstraiError as error:
    print(f"astrai: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@dataclass
class ServerProcess:
    """A running server. log: what it wrote to stderr, once it has ended."""

    process: subprocess.Popen[str]
    url: str
    log: str = ""

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def anthropic(self, **options: Any) -> Anthropic:
        return Anthropic(base_url=self.url, api_key="none", max_retries=0, **options)

    def async_anthropic(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.url, api_key="none", max_retries=0)

    def stats(self) -> dict[str, Any]:
        with self.http() as http:
            stats: dict[str, Any] = http.get("/stats").raise_for_status().json()
            return stats

    def wait(self) -> int:
        """Wait for the process to end; its exit code."""
        _, self.log = self.process.communicate(timeout=60)
        return self.process.returncode


def start_server(source: Path, backend: str = "eager", **options: Any) -> subprocess.Popen[str]:
    """Start a server; `options` are fields of the limits and serve groups."""
    limits = {"threads": 1, **options.pop("limits", {})}
    given = {"source": str(source), "backend": backend, "limits": limits}
    given["serve"] = {"port": 0, "log_level": "warning", **options}
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@contextmanager
def running_server(source: Path, backend: str = "eager", **options: Any) -> Iterator[ServerProcess]:
    """A server that is ready; ended, at once if need be, when the block ends."""
    process = start_server(source, backend, **options)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate()[1]
    server = ServerProcess(process, url)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            killer = threading.Timer(30, process.kill)
            killer.start()
            server.wait()
            killer.cancel()
