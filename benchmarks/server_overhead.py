"""What the server adds to the engine: time between chunks, and to the first one.

Starts a real server and reads N streams at once over plain sockets. The engine's
own statistics say how long its steps took; the rest of the wall time is the
server's part: sampling, detokenising, scheduling, frames, HTTP, shared out over
the steps. The client runs on the same cores and is counted too.

    python benchmarks/server_overhead.py MODEL --backend cpu
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from astrai_cli.config import ExportConfig, LimitsConfig, ModelConfig, ServeConfig
from astrai_cli.loading import RunnableModel, prepare_model
from astrai_cli.serving.server import run_server


@dataclass(frozen=True)
class Steps:
    """The engine's steps so far: how many, and their seconds together."""

    count: int
    seconds: float

    @classmethod
    async def read(cls, url: str) -> Steps:
        async with httpx.AsyncClient() as client:
            stats = (await client.get(f"{url}/stats")).json()
        return cls(stats["steps"], stats["steps"] * stats["step_seconds_mean"])

    def __sub__(self, earlier: Steps) -> Steps:
        return Steps(self.count - earlier.count, self.seconds - earlier.seconds)


@contextmanager
def server(model: RunnableModel, limits: LimitsConfig) -> Iterator[str]:
    """A server's URL; the server ends with the block."""
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


def request_bytes(url: str, prompt: str, max_tokens: int) -> bytes:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    content = json.dumps(body)
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n{content}"
    ).encode()


async def first_and_last_chunk(url: str, prompt: str, max_tokens: int) -> tuple[float, float]:
    """Seconds until the first and until the last chunk of one streamed answer."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    first = last = 0.0
    started = time.perf_counter()
    writer.write(request_bytes(url, prompt, max_tokens))
    while data := await reader.read(65536):
        if b"data: " in data:
            last = time.perf_counter() - started
            first = first or last
    writer.close()
    return first, last


async def between_chunks(url: str, n_streams: int, n_tokens: int) -> tuple[float, float]:
    """Seconds of wall time and of engine steps, for each step of answers given together."""
    before = await Steps.read(url)
    prompts = [f"Tell me story number {number}." for number in range(n_streams)]
    times = await asyncio.gather(*(first_and_last_chunk(url, each, n_tokens) for each in prompts))
    steps = await Steps.read(url) - before
    return max(last for _, last in times) / steps.count, steps.seconds / steps.count


async def to_first_chunk(url: str, n_words: int) -> tuple[float, float]:
    """Seconds until the first chunk of a lone answer, and of the engine steps for it."""
    before = await Steps.read(url)
    first, _ = await first_and_last_chunk(url, "word " * n_words, 1)
    return first, (await Steps.read(url) - before).seconds


async def measure(url: str, options: argparse.Namespace) -> None:
    await between_chunks(url, options.streams, 8)
    chunks = [
        await between_chunks(url, options.streams, options.tokens) for _ in range(options.repeats)
    ]
    firsts = [await to_first_chunk(url, options.words) for _ in range(3 * options.repeats)]
    print(f"{'median milliseconds':45}{'client':>9}{'steps':>9}{'server':>9}")
    print_row(f"between chunks of {options.streams} streams", chunks)
    print_row(f"to the first chunk, prompt of {options.words} words", firsts)


def print_row(name: str, runs: list[tuple[float, float]]) -> None:
    seen, steps = (statistics.median(column) for column in zip(*runs, strict=True))
    added = statistics.median(total - step for total, step in runs)
    print(f"{name:45}" + "".join(f"{1000 * each:9.2f}" for each in (seen, steps, added)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--streams", type=int, default=8, help="answers at once")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--words", type=int, default=64, help="words of the lone prompt")
    parser.add_argument("--repeats", type=int, default=3, help="times each is measured")
    options = parser.parse_args()
    model = prepare_model(
        options.model,
        ModelConfig(backend=options.backend),
        ExportConfig(),
        lambda what, fraction: print(f"\r{fraction:4.0%} {what:60}", end="", file=sys.stderr),
    )
    limits = LimitsConfig(max_decode_sequences=options.streams, threads=options.threads)
    with server(model, limits) as url:
        asyncio.run(measure(url, options))


if __name__ == "__main__":
    main()
