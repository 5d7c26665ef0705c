"""The hashing executor, as one that draws tokens itself and runs while the host goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from numpy_executor import NumpyExecutor

from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling.filters import Candidates
from astrai_cli.engine.sampling.pipeline import _invert, _strategies
from backends.base import ALL_TOKENS, Draw, Step, StepOutput


def draw_token(logits: NDArray[np.float32], draw: Draw) -> int:
    """What `Draw` says, from logits [vocabulary], by the stages of the host."""
    x = logits.copy()
    for change in draw.changes:
        seen = x[change.ids]
        penalty = np.float32(change.penalty)
        x[change.ids] = np.where(seen > 0, seen / penalty, seen * penalty) + change.bias
    if not draw.temperature:
        return int(x.argmax())
    top_k = 0 if draw.top_k == ALL_TOKENS else draw.top_k
    candidates = Candidates(np.arange(len(x)), x - x.max())
    for strategy in _strategies(SamplingParams(draw.temperature, top_k, draw.top_p, draw.min_p)):
        candidates = strategy.apply(candidates)
    return int(candidates.ids[_invert(candidates.weights(), draw.uniform)])


class Launched:
    """A step whose output is there, though nobody may know before asking for it in turn."""

    def __init__(self, executor: LaunchingNumpyExecutor, output: StepOutput) -> None:
        self._executor = executor
        self._output = output

    def result(self) -> StepOutput:
        assert self._executor.under_way.pop(0) is self, "results are asked for in order"
        return self._output


class LaunchingNumpyExecutor(NumpyExecutor):
    """under_way: steps launched whose results were not asked for. n_early: launched behind one."""

    def __init__(
        self, vocab_size: int = 64, max_context: int = 64, max_step_tokens: int = 32
    ) -> None:
        super().__init__(vocab_size, max_context, max_step_tokens)
        self.info = replace(self.info, max_top_k=ALL_TOKENS, changes_logits=True)
        self.under_way: list[Launched] = []
        self.n_early = 0
        self._drawn: list[int] = []

    def step(self, step: Step) -> StepOutput:
        return self.launch(step).result()

    def launch(self, step: Step) -> Launched:
        assert len(self.under_way) < 2, "a third step at once"
        self.n_early += len(self.under_way)
        launched = Launched(self, self._draw(step))
        self.under_way.append(launched)
        return launched

    def _draw(self, step: Step) -> StepOutput:
        known = [
            replace(one, tokens=np.array([self._id(token) for token in one.tokens], np.int32))
            for one in step.sequences
        ]
        logits = super().step(replace(step, sequences=known)).logits
        draws = [draw for one in step.sequences for draw in one.draws or (None,) * one.logit_rows]
        self._drawn = [
            draw_token(row, draw) for row, draw in zip(logits, draws, strict=True) if draw
        ]
        return StepOutput(logits[[draw is None for draw in draws]], self._drawn)

    def _id(self, token: int) -> int:
        return int(token) if token >= 0 else self._drawn[-1 - token]
