"""Drawing the next token: temperature, top-k, top-p, min-p, softmax, draw.

A draw depends on the logits, the request's seed and the index of the token in
the answer, and on nothing else: not on what else runs in the batch, nor on
earlier draws. Any device can repeat it:

    mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9
             z ^= z >> 27; z *= 0x94D049BB133111EB
             z ^= z >> 31                                 (all modulo 2**64)
    uniform(seed, index) = (mix(mix(seed) + (index + 1) * 0x9E3779B97F4A7C15) >> 11) / 2**53

(mix is the finaliser of SplitMix64, Steele, Lea and Flood 2014), and the token is
the first, by ascending id, whose cumulative weight exceeds uniform * total weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, log

import numpy as np
from numpy.typing import NDArray

from astrai_cli.config import INT32_MAX
from astrai_cli.engine.request import SamplingParams
from astrai_cli.errors import ExecutionError, InvalidInputError

_MASK = 2**64 - 1
_BLOCK = 256
# Below this, quotients leave float32, and nothing but the likeliest token could be drawn.
_GREEDY_BELOW = 1e-30

MAX_TEMPERATURE = 10.0
MAX_SEED = 2**63 - 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same seed and index."""
    return (
        float(_mix((_mix(seed & _MASK) + (index + 1) * 0x9E3779B97F4A7C15) & _MASK) >> 11) / 2**53
    )


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


class SamplingPipeline:
    """Strategies in order, then softmax and a draw, under one seed; or the likeliest token."""

    def __init__(
        self, strategies: Sequence[BaseSamplingStrategy], seed: int, *, greedy: bool = False
    ) -> None:
        self._strategies = tuple(strategies)
        self._seed = seed
        self._greedy = greedy

    @classmethod
    def from_params(cls, params: SamplingParams, seed: int) -> SamplingPipeline:
        """Temperature, top-k, top-p, min-p, each where it changes anything.

        Raises InvalidInputError for a parameter out of its bounds.
        """
        check_sampling(params)
        if params.temperature < _GREEDY_BELOW:
            return cls((), seed, greedy=True)
        strategies: list[BaseSamplingStrategy] = []
        if params.temperature != 1:
            strategies.append(TemperatureStrategy(params.temperature))
        if params.top_k:
            strategies.append(TopKStrategy(params.top_k))
        if params.top_p < 1:
            strategies.append(TopPStrategy(params.top_p))
        if params.min_p:
            strategies.append(MinPStrategy(params.min_p))
        return cls(strategies, seed)

    def sample(self, logits: NDArray[np.float32], index: int) -> int:
        """The id of the answer's token number `index`, drawn from logits [vocabulary].

        Raises ExecutionError where the logits hold NaN or no finite maximum.
        """
        likeliest = int(logits.argmax())  # the first NaN, where there is one
        highest = logits[likeliest]
        if not isfinite(highest):
            raise ExecutionError(f"the model's largest logit is {highest}, not a finite number")
        if self._greedy:
            return likeliest
        candidates = Candidates(_all_ids(len(logits)), logits - highest)
        for strategy in self._strategies:
            candidates = strategy.apply(candidates)
        return int(candidates.ids[_draw(candidates.weights(), uniform(self._seed, index))])


def sample(
    logits: NDArray[np.float32], params: SamplingParams, seed: int = 0, index: int = 0
) -> int:
    """Draw once from logits [vocabulary]; see SamplingPipeline.sample."""
    return SamplingPipeline.from_params(params, seed).sample(logits, index)


def check_sampling(params: SamplingParams) -> None:
    """Raises InvalidInputError that names the first parameter out of its bounds."""
    _check("temperature", params.temperature, 0 <= params.temperature <= MAX_TEMPERATURE, "0 to 10")
    _check("top_k", params.top_k, 0 <= params.top_k <= INT32_MAX, f"0 to {INT32_MAX}")
    _check("top_p", params.top_p, 0 < params.top_p <= 1, "more than 0, at most 1")
    _check("min_p", params.min_p, 0 <= params.min_p <= 1, "0 to 1")
    if params.seed is not None:
        _check("seed", params.seed, 0 <= params.seed <= MAX_SEED, f"0 to {MAX_SEED}")


def _check(name: str, value: float, inside: bool, bounds: str) -> None:
    if not inside:
        raise InvalidInputError(f"{name} is {value}; it must be {bounds}", param=name)


@lru_cache(maxsize=4)
def _all_ids(n: int) -> NDArray[np.int64]:
    return np.arange(n)


def _draw(weights: NDArray[np.float32], u: float) -> int:
    """The first index whose cumulative weight exceeds u times the total, blockwise for speed."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum(dtype=np.float64)
    target = u * float(blocks[-1])
    block = min(int(blocks.searchsorted(target, side="right")), len(blocks) - 1)
    start = block * _BLOCK
    inside = weights[start : start + _BLOCK].cumsum(dtype=np.float64)
    if block:
        target -= float(blocks[block - 1])
    # Rounding may leave the target a hair past the block's own sum: then it is its last token.
    if target >= inside[-1]:
        return start + int(inside.searchsorted(inside[-1]))
    return start + int(inside.searchsorted(target, side="right"))
