"""A real server under random requests and faults: nothing may be lost, nothing may leak.

Clients send requests of random lengths, break off in mid-stream or before the answer, and
send bodies that are malformed, too long or too large; they share named sessions, and reset
and delete them; now and then the worker is killed. Before each kill, and at the end, the
clients pause, all sessions are deleted, and the cache must be empty.

    python benchmarks/soak.py smollm2-135m --minutes 10

Exits with 1 where a request was lost or answered wrongly, or cells or sessions leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

import httpx
from local_server import server_process
from preparation import prepare
from process_memory import MemoryCurve, MemoryWatch
from soak_requests import SESSION_IDS, SESSIONS, Fate, RandomClient

from astrai_cli.config import LimitsConfig, ServeConfig

# Seconds. A request that has got nothing for so long is lost; so long may a pause take.
PATIENCE = 120.0
SAMPLE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """seconds: for which requests are sent. kill_every: seconds between kills, on average."""

    seconds: float
    kill_every: float
    clients: int
    seed: int
    max_context: int
    max_request_bytes: int


@dataclass
class SoakResult:
    """What was seen. leaked: cells in use, and sessions, in pauses, in which nothing ran."""

    fates: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    kills: int = 0
    pauses: int = 0
    leaked: Counter[str] = field(default_factory=Counter)
    memory: MemoryWatch = field(default_factory=MemoryWatch)

    def count(self, *fates: Fate) -> int:
        return sum(n for (_, fate), n in self.fates.items() if fate in fates)

    @property
    def passed(self) -> bool:
        return not (self.count(Fate.LOST, Fate.WRONG) or self.leaked.total())


class Soak:
    """One run against a server that is there; everything random comes from the seed."""

    def __init__(self, url: str, server_pid: int, options: SoakOptions) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=PATIENCE,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._server_pid = server_pid
        self._options = options
        self._random = Random(options.seed)
        self._may_send = asyncio.Event()
        self._in_flight = 0
        self.result = SoakResult()

    async def run(self) -> SoakResult:
        """Raises httpx.HTTPError where the server itself is gone."""
        end = time.monotonic() + self._options.seconds
        self._may_send.set()
        watch = asyncio.create_task(self._watch_memory())
        async with self._http:
            clients = [asyncio.create_task(self._client(end)) for _ in range(self._options.clients)]
            killing = asyncio.create_task(self._kill_now_and_then(end))
            await asyncio.gather(killing, *clients)
            await self._check_idle()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return self.result

    async def _client(self, end: float) -> None:
        client = RandomClient(
            self._http,
            Random(self._random.random()),
            self._options.max_context,
            self._options.max_request_bytes,
        )
        while time.monotonic() < end:
            await self._may_send.wait()
            self._in_flight += 1
            kind, fate = await client.send()
            self._in_flight -= 1
            self.result.fates[kind, fate] += 1
            if fate is Fate.TURNED_AWAY:
                await asyncio.sleep(self._random.uniform(0.1, 1.0))

    async def _kill_now_and_then(self, end: float) -> None:
        while True:
            gap = self._options.kill_every * self._random.uniform(0.5, 1.5)
            if time.monotonic() + gap > end:
                return
            await asyncio.sleep(gap)
            await self._check_idle()
            # In the midst of the traffic that starts again.
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
            os.kill((await self._stats())["worker"]["pid"], signal.SIGKILL)
            self.result.kills += 1

    async def _check_idle(self) -> None:
        """Let everything end and look for what is still held."""
        self._may_send.clear()
        await self._stats_of_idle()
        for session_id in SESSION_IDS:
            await self._http.delete(f"{SESSIONS}/{quote(session_id, safe='')}")
        stats = await self._stats()
        self._may_send.set()
        self.result.pauses += 1
        self.result.leaked.update(cells=stats["cells_used"], sessions=stats["sessions"])

    async def _stats_of_idle(self) -> dict[str, Any]:
        """The statistics once nothing runs any more; what then is left does not go away."""
        deadline = time.monotonic() + PATIENCE
        while True:
            stats = await self._stats()
            if not (self._in_flight or stats["active"] or stats["queue"]):
                return stats
            if time.monotonic() > deadline:
                raise RuntimeError(f"not idle after {PATIENCE:.0f} seconds: {stats}")
            await asyncio.sleep(0.05)

    async def _stats(self) -> dict[str, Any]:
        """Waits for a worker that has been killed to be replaced."""
        deadline = time.monotonic() + PATIENCE
        while (response := await self._http.get("/stats")).status_code == 503:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not come back: {response.text}")
            await asyncio.sleep(0.05)
        stats: dict[str, Any] = response.raise_for_status().json()
        return stats

    async def _watch_memory(self) -> None:
        while True:
            self.result.memory.sample([self._server_pid, (await self._stats())["worker"]["pid"]])
            await asyncio.sleep(SAMPLE_EVERY)


def report(result: SoakResult, server_pid: int) -> dict[str, Any]:
    """The numbers of a run; memory in MB, slopes in MB an hour."""
    kinds: dict[str, dict[str, int]] = {}
    for (kind, fate), count in sorted(result.fates.items(), key=lambda item: str(item[0])):
        kinds.setdefault(kind, {})[fate.value] = count
    workers = [curve for curve in result.memory.others(server_pid) if curve.slope_per_hour]
    return {
        "requests": result.count(*Fate),
        "by_kind": kinds,
        "worker_kills": result.kills,
        "lost": result.count(Fate.LOST),
        "wrong": result.count(Fate.WRONG),
        "pauses": result.pauses,
        "leaked": dict(result.leaked),
        "server_memory": _memory(result.memory.curve(server_pid)),
        "worker_memory": [_memory(curve) for curve in workers],
        "worker_slope_median": statistics.median(
            _megabytes(curve.slope_per_hour or 0.0) for curve in workers
        )
        if workers
        else None,
    }


def _memory(curve: MemoryCurve) -> dict[str, Any]:
    slope = curve.slope_per_hour
    return {
        "first": _megabytes(curve.bytes[0]) if curve.bytes else None,
        "last": _megabytes(curve.bytes[-1]) if curve.bytes else None,
        "most": _megabytes(max(curve.bytes)) if curve.bytes else None,
        "slope_per_hour": None if slope is None else _megabytes(slope),
    }


def _megabytes(n_bytes: float) -> float:
    return round(n_bytes / 1e6, 2)


def main() -> int:
    options = _options()
    model = prepare(options.model, options.backend)
    limits = LimitsConfig(
        max_context=512,
        max_inflight_requests=24,
        max_cells=2048,
        max_sessions=26,
        evict_idle_sessions=True,
        threads=options.threads,
    )
    serve = ServeConfig(port=0, log_level="error", max_request_bytes=2**20)
    soak_options = SoakOptions(
        seconds=60 * options.minutes,
        kill_every=options.kill_every,
        clients=options.clients,
        seed=options.seed,
        max_context=512,
        max_request_bytes=serve.max_request_bytes,
    )

    async def run(url: str, pid: int) -> SoakResult:
        return await Soak(url, pid, soak_options).run()

    with server_process(model, limits, serve) as server:
        result = asyncio.run(run(server.url, server.pid))
    print(json.dumps({"seed": options.seed, **report(result, server.pid)}, indent=2))
    return 0 if result.passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", default="cpu", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clients", type=int, default=28, help="requests at once; the server admits 24"
    )
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds between kills")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
