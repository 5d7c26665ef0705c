"""The stages of sampling in their order, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling.filters import (
    BaseSamplingStrategy,
    Candidates,
    MinPStrategy,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
)
from astrai_cli.engine.sampling.params import check_sampling
from astrai_cli.engine.sampling.penalties import (
    BaseLogitStrategy,
    LogitBiasStrategy,
    OccurrencePenaltyStrategy,
    RepetitionPenaltyStrategy,
)
from astrai_cli.engine.sampling.random import uniform
from astrai_cli.errors import ExecutionError
from backends.base import ALL_TOKENS, Draw, ExecutorInfo

_BLOCK = 256
# Below this, quotients leave float32, and nothing but the likeliest token could be drawn.
_GREEDY_BELOW = 1e-30


class SamplingPipeline:
    """Draws one answer's tokens under one seed; remembers them where a penalty needs them."""

    def __init__(
        self,
        logit_strategies: Sequence[BaseLogitStrategy],
        strategies: Sequence[BaseSamplingStrategy],
        seed: int,
        *,
        greedy: bool = False,
        draw: Draw,
    ) -> None:
        """greedy: take the largest logit instead of narrowing and drawing.

        draw: what an executor would do that draws by itself, but for `uniform` and changes.
        """
        self._logit_strategies = tuple(logit_strategies)
        self._strategies = tuple(strategies)
        self._seed = seed
        self._greedy = greedy
        self._draw_there = draw

    @classmethod
    def from_params(
        cls, params: SamplingParams, seed: int, prompt: Sequence[int] = ()
    ) -> SamplingPipeline:
        """The stages that change anything, for the answer to a prompt of token ids.

        Raises InvalidInputError for a parameter out of its bounds.
        """
        check_sampling(params)
        greedy = params.temperature < _GREEDY_BELOW
        strategies = () if greedy else tuple(_strategies(params))
        logit_strategies = _logit_strategies(params, prompt)
        draw = _draw_of(params, greedy)
        return cls(logit_strategies, strategies, seed, greedy=greedy, draw=draw)

    def draws(self, index: int, guesses: Sequence[int], info: ExecutorInfo) -> tuple[Draw, ...]:
        """How an executor may draw the answer's token number `index`; none where it cannot.

        After that, how it may draw the token behind each of the guesses, if those before it
        are right. What counts of the tokens drawn is to be told to `observe`.
        """
        draw = self._draw_there
        if draw.top_k > info.max_top_k or (self._logit_strategies and not info.changes_logits):
            return ()
        strategies = self._logit_strategies
        if guesses:
            strategies = tuple(each.fork() for each in strategies)
        draws = []
        for row in range(1 + len(guesses)):
            if row:
                for each in strategies:
                    each.observe(guesses[row - 1])
            changes = tuple(each.change() for each in strategies)
            draws.append(replace(draw, uniform=uniform(self._seed, index + row), changes=changes))
        return tuple(draws)

    @property
    def remembers(self) -> bool:
        """Whether a draw depends on the answer's tokens before it."""
        return any(strategy.remembers for strategy in self._logit_strategies)

    def observe(self, token_id: int) -> None:
        """Take note of a token of the answer that was drawn elsewhere."""
        for strategy in self._logit_strategies:
            strategy.observe(token_id)

    def sample(self, logits: NDArray[np.float32], index: int) -> int:
        """The id of the answer's token number `index`, drawn from logits [vocabulary].

        The token is the first, by ascending id, whose cumulative weight exceeds
        uniform(seed, index) times the total. Raises ExecutionError where the logits
        hold NaN or no finite maximum.
        """
        if not self._logit_strategies:
            return self._draw(logits, index)
        changed = logits.copy()
        for strategy in self._logit_strategies:
            strategy.apply(changed)
        # One more array of this size would be mapped anew for each draw, which costs four times it.
        token_id = self._draw(changed, index, out=changed)
        self.observe(token_id)
        return token_id

    def _draw(
        self, logits: NDArray[np.float32], index: int, out: NDArray[np.float32] | None = None
    ) -> int:
        """As sample, without changes first. out: where shifted logits may go, may be `logits`."""
        likeliest = int(logits.argmax())  # the first NaN, where there is one
        highest = logits[likeliest]
        if not isfinite(highest):
            raise ExecutionError(f"the model's largest logit is {highest}, not a finite number")
        if self._greedy:
            return likeliest
        candidates = Candidates(_all_ids(len(logits)), np.subtract(logits, highest, out=out))
        for strategy in self._strategies:
            candidates = strategy.apply(candidates)
        return int(candidates.ids[_invert(candidates.weights(), uniform(self._seed, index))])


def sample(
    logits: NDArray[np.float32], params: SamplingParams, seed: int = 0, index: int = 0
) -> int:
    """Draw once from logits [vocabulary]; see SamplingPipeline.sample."""
    return SamplingPipeline.from_params(params, seed).sample(logits, index)


def _draw_of(params: SamplingParams, greedy: bool) -> Draw:
    if greedy:
        return Draw(0.0)
    return Draw(params.temperature, params.top_k or ALL_TOKENS, params.top_p, params.min_p)


def _logit_strategies(params: SamplingParams, prompt: Sequence[int]) -> list[BaseLogitStrategy]:
    chosen: list[BaseLogitStrategy] = []
    if params.repetition_penalty != 1:
        chosen.append(RepetitionPenaltyStrategy(params.repetition_penalty, prompt))
    if params.presence_penalty or params.frequency_penalty:
        chosen.append(OccurrencePenaltyStrategy(params.presence_penalty, params.frequency_penalty))
    if params.logit_bias:
        chosen.append(LogitBiasStrategy(params.logit_bias))
    return chosen


def _strategies(params: SamplingParams) -> list[BaseSamplingStrategy]:
    chosen: list[BaseSamplingStrategy] = []
    if params.temperature != 1:
        chosen.append(TemperatureStrategy(params.temperature))
    if params.top_k:
        chosen.append(TopKStrategy(params.top_k))
    if params.top_p < 1:
        chosen.append(TopPStrategy(params.top_p))
    if params.min_p:
        chosen.append(MinPStrategy(params.min_p))
    return chosen


@lru_cache(maxsize=4)
def _all_ids(n: int) -> NDArray[np.int64]:
    return np.arange(n)


def _invert(weights: NDArray[np.float32], u: float) -> int:
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
