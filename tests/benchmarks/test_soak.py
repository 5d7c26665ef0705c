"""A short soak: faults of every kind, and nothing lost or leaked."""

from __future__ import annotations

import asyncio
from pathlib import Path

from process_memory import MemoryCurve
from server_process import running_server
from soak import Soak, SoakOptions, SoakResult, report
from soak_requests import Fate
from tiny_models import tiny_gguf


def test_nothing_is_lost_or_leaked(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path, context_length=512)
    options = SoakOptions(
        seconds=8.0,
        kill_every=4.0,
        clients=12,
        seed=1,
        max_context=512,
        max_request_bytes=2**16,
    )
    # Little room, so that requests wait, are preempted and are turned away.
    limits = {"max_context": 512, "max_cells": 1024, "max_inflight_requests": 10}
    limits |= {"max_decode_sequences": 4, "max_sessions": 11, "evict_idle_sessions": True}

    with running_server(model, limits=limits, log_level="error", max_request_bytes=2**16) as server:
        pid = server.process.pid

        async def run() -> SoakResult:
            return await Soak(server.url, pid, options).run()

        result = asyncio.run(run())

    told = report(result, pid)
    assert result.passed, told
    assert (told["lost"], told["wrong"]) == (0, 0)
    assert told["leaked"] == {"cells": 0, "sessions": 0}
    assert result.kills >= 1
    assert result.pauses == result.kills + 1
    for fate in (Fate.ANSWERED, Fate.REFUSED, Fate.ABANDONED):
        assert result.count(fate), told


def test_the_slope_is_that_of_the_later_half() -> None:
    warming = [0, 100, 200, 300, 400]
    steady = [400 + 2 * n for n in range(5)]
    curve = MemoryCurve([float(n) for n in range(10)], warming + steady)
    assert round(curve.slope_per_hour or 0) == 2 * 3600
    assert MemoryCurve().slope_per_hour is None
