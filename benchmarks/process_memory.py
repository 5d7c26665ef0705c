"""The memory of running processes over time; where there is no /proc, nothing is known of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


def resident_bytes(pid: int) -> int | None:
    """Bytes of a process that are in memory now; None where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return 1024 * int(lines[0].split()[1]) if lines else None


@dataclass
class MemoryCurve:
    """Samples of one process: seconds, and bytes."""

    times: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def add(self, n_bytes: int) -> None:
        self.times.append(time.monotonic())
        self.bytes.append(n_bytes)

    @property
    def slope_per_hour(self) -> float | None:
        """Bytes an hour, by least squares over the later half; the earlier one warms up."""
        half = len(self.times) // 2
        if len(self.times) - half < 3:
            return None
        slope: float = np.polyfit(self.times[half:], self.bytes[half:], 1)[0]
        return float(3600 * slope)


class MemoryWatch:
    """A curve for each process that was ever seen."""

    def __init__(self) -> None:
        self._curves: dict[int, MemoryCurve] = {}

    def sample(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if n_bytes := resident_bytes(pid):
                self._curves.setdefault(pid, MemoryCurve()).add(n_bytes)

    def curve(self, pid: int) -> MemoryCurve:
        return self._curves.get(pid, MemoryCurve())

    def others(self, pid: int) -> list[MemoryCurve]:
        """The curves of all processes but this one, in the order in which they came."""
        return [curve for each, curve in self._curves.items() if each != pid]
