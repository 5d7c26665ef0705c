"""Whether two samples are of one distribution: Pearson's chi-square test of homogeneity."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

# The normal distribution exceeds it once in ten thousand times.
_QUANTILE = 3.719
_LEAST_EXPECTED = 5


def compare(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[float, int]:
    """The statistic of two samples of one size, and its degrees of freedom.

    one, other: [outcomes], how often each came. Rare outcomes count as one together, so that each
    is expected at least 5 times.
    """
    total = one + other
    order = total.argsort()
    enough = 2 * _LEAST_EXPECTED
    n_rare = max(int((total < enough).sum()), int(total[order].cumsum().searchsorted(enough)) + 1)
    first, second = (
        np.append(counts[order[n_rare:]], counts[order[:n_rare]].sum()) for counts in (one, other)
    )
    return float(((first - second) ** 2 / (first + second)).sum()), len(first) - 1


def bound(degrees: int) -> float:
    """What the statistic exceeds once in ten thousand times where the distribution is one.

    By Wilson and Hilferty (1931): at most 3 % more from 5 degrees on.
    """
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + _QUANTILE * sqrt(spread)) ** 3)
