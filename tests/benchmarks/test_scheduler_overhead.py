"""The benchmark of the scheduler runs as it is told to be run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "scheduler_overhead.py"


def test_it_tells_the_time_between_steps() -> None:
    command = [sys.executable, BENCHMARK, "--sequences", "2", "--prompt", "40", "--answer", "30"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names = ("milliseconds a step", "contiguous", "paged", "paged, pages of one")
    lines = result.stdout.splitlines()
    assert [line.startswith(name) for line, name in zip(lines, names, strict=True)] == [True] * 4
    assert all(float(word) > 0 for line in lines[1:] for word in line.split()[-3:])
    assert not result.stderr
