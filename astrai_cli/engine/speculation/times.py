"""How long steps take, by the number of their rows."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

# Larger steps are told apart by powers of two alone.
_MAX_EXACT = 64
_PACE_WEIGHT = 0.3
_LEAST_WEIGHT = 0.05
# A step that took longer than this times the usual was disturbed, and counts as this.
_MAX_FACTOR = 2.0


class StepTimes:
    """The seconds of steps, as measured: a pace, times a factor for each number of rows.

    The pace follows the last few steps, the factors change slowly. So what slows all steps
    down, as other programs or longer histories do, is known at once for all numbers of
    rows, and does not change which of them seems to pay.
    """

    def __init__(self) -> None:
        self._pace = 0.0
        self._rows: list[int] = []
        self._factors: list[float] = []
        self._counts: list[int] = []

    def record(self, n_rows: int, seconds: float) -> None:
        is_exact = n_rows <= _MAX_EXACT
        rows = n_rows if is_exact else 1 << (n_rows - 1).bit_length()
        place = bisect_left(self._rows, rows)
        self._pace = self._pace or seconds
        if place == len(self._rows) or self._rows[place] != rows:
            self._rows.insert(place, rows)
            self._factors.insert(place, seconds / self._pace)
            self._counts.insert(place, 1)
            return
        usual = self._factors[place] * self._pace
        surprise = min(seconds / usual, _MAX_FACTOR) - 1
        self._counts[place] += 1
        weight = max(_LEAST_WEIGHT, 1 / self._counts[place])
        self._factors[place] *= 1 + weight * surprise
        if is_exact:
            self._pace *= 1 + _PACE_WEIGHT * surprise

    @property
    def measured(self) -> tuple[int, int]:
        """The least and the most rows that were measured; 0 where none were."""
        return (self._rows[0], self._rows[-1]) if self._rows else (0, 0)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The seconds that steps of ascending numbers of rows take: 0 where none was measured.

        Between two measured numbers by interpolation, outside of them as the nearest one;
        never less for more rows.
        """
        if not self._rows:
            return np.zeros(len(rows))
        factors = np.interp(rows, self._rows, self._factors)
        seconds: NDArray[np.float64] = self._pace * np.maximum.accumulate(factors)
        return seconds
