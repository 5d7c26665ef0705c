"""Strategies that narrow the tokens down to those that may be drawn, or scale their logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may still be drawn.

    ids: int64 [n], ascending. logits: float32 [n], never NaN, the largest of them 0.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]

    def take(self, keep: NDArray[np.int64]) -> Candidates:
        return Candidates(self.ids[keep], self.logits[keep])

    def largest(self, k: int) -> Candidates:
        """The k largest logits; of equal ones the lower ids."""
        if k >= len(self.ids):
            return self
        threshold = np.partition(self.logits, -k)[-k]
        keep = np.flatnonzero(self.logits >= threshold)
        surplus = len(keep) - k
        if surplus:
            ties = np.flatnonzero(self.logits[keep] == threshold)
            keep = np.delete(keep, ties[-surplus:])
        return self.take(keep)

    def weights(self) -> NDArray[np.float32]:
        """Softmax's numerators, the largest being 1: float32 [n]."""
        weights: NDArray[np.float32] = np.exp(self.logits)
        return weights


class BaseSamplingStrategy(ABC):
    """One step of the pipeline: narrows the candidates or changes their logits."""

    @abstractmethod
    def apply(self, candidates: Candidates) -> Candidates:
        """The candidates that are left, at least one."""


class TemperatureStrategy(BaseSamplingStrategy):
    """Divides the logits by a temperature above 0."""

    def __init__(self, temperature: float) -> None:
        self._temperature = np.float32(temperature)

    def apply(self, candidates: Candidates) -> Candidates:
        return Candidates(candidates.ids, candidates.logits / self._temperature)


class TopKStrategy(BaseSamplingStrategy):
    """Keeps the k likeliest tokens; of equally likely ones the lower ids."""

    def __init__(self, k: int) -> None:
        self._k = k

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.largest(self._k)


class TopPStrategy(BaseSamplingStrategy):
    """Keeps the fewest tokens, likeliest first, that have at least the probability p together."""

    def __init__(self, p: float) -> None:
        self._p = p

    def apply(self, candidates: Candidates) -> Candidates:
        weights = candidates.weights()
        total = float(weights.sum())
        # All tokens below this weight together miss the nucleus: no need to sort them.
        floor = (1 - self._p) * total / len(weights)
        likely = np.sort(weights[weights >= floor])[::-1]
        size = int(np.searchsorted(likely.cumsum(dtype=np.float64), self._p * total)) + 1
        return candidates.largest(size)


class MinPStrategy(BaseSamplingStrategy):
    """Drops tokens less likely than min_p times the likeliest."""

    def __init__(self, min_p: float) -> None:
        self._distance = np.float32(log(min_p))

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.take(np.flatnonzero(candidates.logits >= self._distance))
