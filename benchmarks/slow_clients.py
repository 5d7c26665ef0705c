"""What clients that are slow or silent cost the others: latency beside a crowd of them, and alone.

Starts a real server. A few clients read streamed answers over plain sockets, in turns
alone and beside the crowd, which is a process of its own:

- idle connections, which asked once and keep theirs open;
- slow readers, which asked for an answer and read a byte of it a second;
- half-open connections, which stopped in the middle of their headers and say no more;
- senders of one byte of their headers a second.

A connection that the server closes is opened again, so the crowd stays as large as it was.

    python benchmarks/slow_clients.py MODEL --backend cpu
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from local_server import server
from preparation import prepare
from server_overhead import request_bytes

from astrai_cli.config import LimitsConfig

PROMPT = "Tell me a story."
SECOND = 1.0
# Seconds after the crowd has come, or gone, in which the server does what there is to do then.
SETTLING = 2.0

Behaviour = Callable[[str, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, over the answers of one run."""

    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float

    @classmethod
    def of(cls, arrivals: list[list[float]]) -> Latency:
        """arrivals: for each answer, the seconds from its request to each of its chunks."""
        first = [times[0] for times in arrivals]
        between = [after - before for times in arrivals for before, after in pairwise(times)]
        return cls(*quantiles(first), *quantiles(between))

    @classmethod
    def medians(cls, runs: list[Latency]) -> Latency:
        return cls(
            **{
                name: statistics.median(getattr(run, name) for run in runs)
                for name in cls.__slots__
            }
        )


def quantiles(values: list[float]) -> tuple[float, float]:
    """The 50th and the 99th of a hundred."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


async def arrivals(url: str, n_tokens: int) -> list[float]:
    """When the chunks of one streamed answer came."""
    request = request_bytes(url, PROMPT, n_tokens, {"temperature": 0})
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    started = time.perf_counter()
    writer.write(request)
    times = []
    async for line in reader:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter() - started)
    writer.close()
    # The first one has the role alone, and comes together with the first text.
    return times[1:]


async def ask(url: str, n_answers: int, n_tokens: int) -> list[list[float]]:
    """One client: an answer after the other."""
    return [await arrivals(url, n_tokens) for _ in range(n_answers)]


async def run(url: str, options: argparse.Namespace) -> Latency:
    clients = (ask(url, options.answers, options.tokens) for _ in range(options.clients))
    return Latency.of([times for answers in await asyncio.gather(*clients) for times in answers])


async def idle(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    while await reader.read(4096):
        pass
    writer.close()


async def slow_reader(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=1)
    url = f"http://{host}:{port}"
    writer.write(request_bytes(url, PROMPT, 16, {"logprobs": True, "top_logprobs": 20}))
    while await reader.read(1):
        await asyncio.sleep(SECOND)
    writer.close()


async def half_open(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHo")
    await reader.read()
    writer.close()


async def slow_sender(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    for byte in b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 1000:
        writer.write(byte.to_bytes())
        await writer.drain()
        await asyncio.sleep(SECOND)


async def behave(behaviour: Behaviour, host: str, port: int) -> None:
    """Again whenever the server has had enough."""
    while True:
        with suppress(OSError):
            await behaviour(host, port)
        await asyncio.sleep(0)


async def be_crowd(host: str, port: int, counts: dict[str, int], ready: Any) -> None:
    behaviours: dict[str, Behaviour] = {
        "idle": idle,
        "slow_readers": slow_reader,
        "half_open": half_open,
        "slow_senders": slow_sender,
    }
    crowd = [
        asyncio.create_task(behave(behaviours[name], host, port))
        for name, count in counts.items()
        for _ in range(count)
    ]
    await asyncio.sleep(SETTLING)
    ready.set()
    await asyncio.gather(*crowd)


def start_crowd(host: str, port: int, counts: dict[str, int], ready: Any) -> None:
    asyncio.run(be_crowd(host, port, counts, ready))


@contextmanager
def crowd_of(url: str, counts: dict[str, int]) -> Iterator[None]:
    """A crowd that has come, and goes with the block."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    where = urlsplit(url)
    process = context.Process(target=start_crowd, args=(where.hostname, where.port, counts, ready))
    process.start()
    try:
        ready.wait(120)
        yield
    finally:
        process.terminate()
        process.join()
        time.sleep(SETTLING)


def measure(url: str, options: argparse.Namespace) -> dict[str, Latency]:
    """Medians of the runs alone and in the crowd, after one that is not counted."""
    counts = {name: getattr(options, name) for name in _CROWD}
    runs: dict[str, list[Latency]] = {"alone": [], "in the crowd": []}
    asyncio.run(run(url, options))
    for turn in range(options.repeats):
        runs["alone"].append(asyncio.run(run(url, options)))
        with crowd_of(url, counts):
            crowded = asyncio.run(run(url, options))
        runs["in the crowd"].append(crowded)
        print(f"\rround {turn + 1} of {options.repeats}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: Latency.medians(each) for name, each in runs.items()}


def print_table(alone: Latency, crowded: Latency) -> None:
    print(f"{'median milliseconds':20}{'alone':>10}{'in the crowd':>14}{'ratio':>8}")
    for name in Latency.__slots__:
        before, after = getattr(alone, name), getattr(crowded, name)
        print(f"{name:20}{1000 * before:10.2f}{1000 * after:14.2f}{after / before:8.3f}")


def main() -> None:
    options = _options()
    model = prepare(options.model, options.backend)
    limits = LimitsConfig(max_decode_sequences=options.clients, threads=options.threads)
    with server(model, limits) as url:
        results = measure(url, options)
    if options.json:
        print(json.dumps({name: asdict(each) for name, each in results.items()}, indent=2))
    else:
        print_table(results["alone"], results["in the crowd"])


_CROWD = {"idle": 500, "slow_readers": 32, "half_open": 64, "slow_senders": 64}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--clients", type=int, default=4, help="clients that read at once")
    parser.add_argument("--answers", type=int, default=8, help="answers of each, one by one")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind, in turns")
    for name, count in _CROWD.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=count, help=f"{name.replace('_', ' ')} at once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
