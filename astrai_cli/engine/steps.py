"""Steps on the executor: made of tasks' shares, begun, and brought back to the tasks.

An executor that draws tokens itself and runs while the host goes on can be given the step
behind the running one, before the tokens of that are known here: answers go on with them
there. Meanwhile the host does what it has to do between two steps. An answer that turns
out to have ended leaves its row of that step unused; the row's key and value lie in a cell
that the answer had, and whoever gets the cell writes it later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from astrai_cli.engine.batch import Share
from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.stats import EngineStats
from astrai_cli.engine.task import TaskState
from astrai_cli.errors import AstraiError, ExecutionError
from backends.base import (
    Executor,
    LaunchingExecutor,
    RunningStep,
    SequenceStep,
    Step,
    StepOutput,
    drawn_token,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A step under way. began: when it was given to the executor (perf_counter)."""

    shares: Sequence[Share]
    sequences: Sequence[SequenceStep]
    running: RunningStep
    began: float

    @property
    def n_active(self) -> int:
        """Tasks in it that have not ended."""
        return sum(task.state is not TaskState.FINISHED for task, _ in self.shares)


@dataclass(frozen=True, slots=True)
class _Done:
    """The step of an executor that the host waits for."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output


class StepRunner:
    """Runs steps of tasks' shares; a failure ends the tasks of a step and no others."""

    def __init__(self, executor: Executor, cache: KVCache, stats: EngineStats) -> None:
        self._executor = executor
        self._launching = executor if isinstance(executor, LaunchingExecutor) else None
        self._info = executor.info
        self._cache = cache
        self._stats = stats
        self._last_end = 0.0

    def begin(self, shares: Sequence[Share]) -> SharedStep | None:
        """Give a step to the executor; None where that failed."""
        try:
            self._encode_images(shares)
            sequences = [task.share(n, self._cache.view(task.id), self._info) for task, n in shares]
            return self._launch(shares, sequences)
        except Exception as error:
            _fail(shares, error)
            return None

    def begin_next(self, step: SharedStep) -> SharedStep | None:
        """Give the executor the step behind this one; None where its tokens must be known first."""
        if self._launching is None or not all(len(each.draws) == 1 for each in step.sequences):
            return None
        going_on = [
            (number, task)
            for number, (task, _) in enumerate(step.shares)
            if task.state is not TaskState.FINISHED and not task.ends_with_next
        ]
        if not going_on or not all(task.goes_on_unseen for _, task in going_on):
            return None
        shares = [(task, 1) for _, task in going_on]
        if not all(self._cache.grow(task.id, task.n_known + 1) for _, task in going_on):
            for task, _ in shares:
                self._cache.shrink(task.id, task.n_known)
            return None
        sequences = [
            task.next_share(drawn_token(number), self._cache.view(task.id), self._info)
            for number, task in going_on
        ]
        try:
            return self._launch(shares, sequences)
        except Exception:
            # Begun again when the tokens are known, it fails for those whom it concerns.
            logger.warning("a step of %d sequences could not be begun early", len(shares))
            return None

    def finish(self, step: SharedStep) -> float | None:
        """Wait for a step and let its tasks know; the seconds it took, None where it failed."""
        try:
            output = step.running.result()
        except Exception as error:
            _fail(step.shares, error)
            return None
        # A step that was begun early waited for the one before.
        began = max(step.began, self._last_end)
        self._last_end = time.perf_counter()
        self._record(step, self._last_end - began)
        self._give(step, output)
        return time.perf_counter() - began

    def _launch(self, shares: Sequence[Share], sequences: Sequence[SequenceStep]) -> SharedStep:
        step = Step(sequences, self._cache.page_size)
        began = time.perf_counter()
        if self._launching is None:
            running: RunningStep = _Done(self._executor.step(step))
        else:
            running = self._launching.launch(step)
        return SharedStep(shares, sequences, running, began)

    def _encode_images(self, shares: Sequence[Share]) -> None:
        """Compute the embeddings that the step needs and that are not there yet."""
        for task, n in shares:
            image = task.next_image(n)
            if image is not None and not image.is_encoded:
                started = time.perf_counter()
                image.encode(self._executor)
                self._stats.record_image(time.perf_counter() - started)

    def _record(self, step: SharedStep, seconds: float) -> None:
        states = [task.state for task, _ in step.shares]
        n_prefilled = sum(
            n
            for (_, n), state in zip(step.shares, states, strict=True)
            if state is TaskState.PREFILLING
        )
        self._stats.record_step(seconds, n_prefilled, states.count(TaskState.DECODING))

    def _give(self, step: SharedStep, output: StepOutput) -> None:
        """Give each task what its sequence wanted."""
        row, drawn = 0, iter(output.tokens)
        for (task, n), sequence in zip(step.shares, step.sequences, strict=True):
            tokens = tuple(islice(drawn, len(sequence.draws)))
            n_rows = 0 if tokens else sequence.logit_rows
            rows = output.logits[row : row + n_rows]
            row += n_rows
            if task.state is TaskState.FINISHED:
                continue
            try:
                task.advance(n, rows, tokens)
            except Exception as error:
                logger.exception("task %d failed", task.id)
                task.end("error", _as_execution_error(error))
            else:
                self._cache.record(task.id, task.identity, task.n_computed)


def _fail(shares: Sequence[Share], error: Exception) -> None:
    logger.exception("a step of %d sequences failed", len(shares))
    for task, _ in shares:
        task.end("error", _as_execution_error(error))


def _as_execution_error(error: Exception) -> AstraiError:
    if isinstance(error, ExecutionError):
        return error
    return ExecutionError(f"the step failed: {type(error).__name__}: {error}")
