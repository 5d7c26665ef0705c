"""Puts requests on a server: as fast as it answers, or at a rate of their own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random

from astrai_cli.benchmark.load.client import LoadClient, Outcome
from astrai_cli.benchmark.load.requests import LoadRequest

Done = Callable[[Outcome], None]


async def closed_loop(
    client: LoadClient,
    requests: Sequence[LoadRequest],
    concurrency: int,
    duration: float,
    done: Done,
) -> None:
    """Keep `concurrency` requests in flight; start none after `duration` seconds."""
    clock = asyncio.get_running_loop().time
    end = clock() + duration
    waiting = iter(requests)

    async def ask_in_turn() -> None:
        for request in waiting:
            done(await client.send(request))
            if clock() >= end:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(requests))):
            group.create_task(ask_in_turn())


async def open_loop(
    client: LoadClient,
    requests: Sequence[LoadRequest],
    moments: Iterable[float],
    done: Done,
) -> None:
    """Start each request at its moment, in seconds from now, however many are in flight."""
    clock = asyncio.get_running_loop().time
    start = clock()

    async def ask(request: LoadRequest) -> None:
        done(await client.send(request))

    async with asyncio.TaskGroup() as group:
        for request, moment in zip(requests, moments, strict=False):
            await asyncio.sleep(start + moment - clock())
            group.create_task(ask(request))


def poisson_moments(rate: float, duration: float, seed: int) -> Iterator[float]:
    """The moments up to `duration` of a Poisson process of `rate` a second, the first at 0."""
    random = Random(seed)
    gaps = (random.expovariate(rate) for _ in itertools.count())
    moments = itertools.accumulate(gaps, initial=0.0)
    return itertools.takewhile(lambda moment: moment <= duration, moments)
