"""What the server adds to the executor's own time: between chunks, and to the first one.

Starts a real server and reads N streams at once over plain sockets. The same work runs
in turn on an engine in a process of its own, with nothing beside it. What the clients
see more than those steps took is the server's part: sampling, detokenising, scheduling,
frames, HTTP, and what all that takes from the steps it runs beside. The client runs on
the same cores and is counted too.

    python benchmarks/server_overhead.py MODEL --backend cpu
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from dataclasses import asdict, astuple, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from astrai_peer import start_astrai
from local_server import server
from peer import Peer
from preparation import prepare

from astrai_cli.config import LimitsConfig

_numbers = itertools.count(1_000_000)
SAMPLINGS = {"greedy": {"temperature": 0}, "the protocol's defaults": {}}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of one chunk.

    client: as the clients saw it. steps: the executor's steps then. alone: the executor's
    steps for the same work with no server beside them. server: what it added.
    """

    client: float
    steps: float
    alone: float
    server: float

    @classmethod
    def of(cls, client: float, steps: float, alone: float, chunks: int = 1) -> Times:
        return cls(client / chunks, steps / chunks, alone / chunks, (client - alone) / chunks)

    @classmethod
    def medians(cls, runs: list[Times]) -> Times:
        return cls(*map(statistics.median, zip(*map(astuple, runs), strict=True)))


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine has done so far."""

    steps: int
    step_seconds: float
    tokens_prefilled: int

    @classmethod
    async def read(cls, url: str) -> Counters:
        async with httpx.AsyncClient() as client:
            stats = (await client.get(f"{url}/stats")).json()
        steps = stats["steps"]
        return cls(steps, steps * stats["step_seconds_mean"], stats["tokens_prefilled"])

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))


def request_bytes(url: str, prompt: str, max_tokens: int, sampling: dict[str, Any]) -> bytes:
    body: dict[str, Any] = {
        # New from its start, so that no prefix of it is found in a cache.
        "messages": [
            {"role": "system", "content": str(next(_numbers))},
            {"role": "user", "content": prompt},
        ],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        **sampling,
    }
    content = json.dumps(body)
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n{content}"
    ).encode()


async def first_and_last_chunk(url: str, request: bytes) -> tuple[float, float]:
    """Seconds until the first and until the last chunk of one streamed answer."""
    where = urlsplit(url)
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    first = last = 0.0
    writer.write(request)
    while data := await reader.read(65536):
        if b"data: " in data:
            last = time.perf_counter() - started
            first = first or last
    writer.close()
    return first, last


class Overhead:
    """Single runs on one server, each beside the same work on an engine alone."""

    def __init__(self, url: str, alone: Peer, n_streams: int, n_tokens: int) -> None:
        self._url = url
        self._alone = alone
        self._n_streams = n_streams
        self._n_tokens = n_tokens

    async def between_chunks(self, sampling: dict[str, Any]) -> Times:
        """A step's worth of answers given together."""
        requests = [
            request_bytes(self._url, "Tell me a story.", self._n_tokens, sampling)
            for _ in range(self._n_streams)
        ]
        before = await Counters.read(self._url)
        times = await asyncio.gather(*(first_and_last_chunk(self._url, each) for each in requests))
        done = await Counters.read(self._url) - before
        alone = self._alone.ask(
            kind="decode",
            sequences=self._n_streams,
            context=done.tokens_prefilled // self._n_streams,
        )
        return Times.of(
            max(last for _, last in times), done.step_seconds, alone["step_seconds"], done.steps
        )

    async def to_first_chunk(self, n_words: int) -> Times:
        """A lone answer's first chunk."""
        request = request_bytes(self._url, "word " * n_words, 1, {})
        before = await Counters.read(self._url)
        first, _ = await first_and_last_chunk(self._url, request)
        done = await Counters.read(self._url) - before
        alone = self._alone.ask(kind="prefill", context=done.tokens_prefilled)
        return Times.of(first, done.step_seconds, alone["step_seconds"])


async def measure(overhead: Overhead, options: argparse.Namespace) -> dict[str, Times]:
    """Medians of everything, after one run of each that is not counted."""
    runs: dict[str, list[Times]] = {}
    for turn in range(options.repeats + 1):
        for name, sampling in SAMPLINGS.items():
            times = await overhead.between_chunks(sampling)
            runs.setdefault(f"between chunks of {options.streams} streams, {name}", []).append(
                times
            )
        for n_words in options.words:
            times = await overhead.to_first_chunk(n_words)
            runs.setdefault(f"to the first chunk, prompt of {n_words} words", []).append(times)
        print(f"\rround {turn} of {options.repeats}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: Times.medians(each[1:]) for name, each in runs.items()}


def print_table(results: dict[str, Times]) -> None:
    print(f"{'median milliseconds':58}" + "".join(f"{name:>9}" for name in Times.__slots__))
    for name, times in results.items():
        print(f"{name:58}" + "".join(f"{1000 * each:9.2f}" for each in astuple(times)))


def main() -> None:
    options = _options()
    model = prepare(options.model, options.backend)
    limits = LimitsConfig(max_decode_sequences=options.streams, threads=options.threads)
    alone = start_astrai(
        model,
        sequences=options.streams,
        context=limits.max_context,
        decode_tokens=options.tokens,
        threads=options.threads,
    )
    with alone, server(model, limits) as url:
        overhead = Overhead(url, alone, options.streams, options.tokens)
        results = asyncio.run(measure(overhead, options))
    if options.json:
        print(json.dumps({name: asdict(times) for name, times in results.items()}, indent=2))
    else:
        print_table(results)


def _options() -> argparse.Namespace:
    def counts(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--streams", type=int, default=8, help="answers at once")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument(
        "--words", type=counts, default=[16, 64, 256], help="words of the lone prompts"
    )
    parser.add_argument("--repeats", type=int, default=5, help="counted runs of each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
