"""An executor for tests of the engine: its logits are a hash of the whole visible history.

A wrong page, position, token or mix-up between sequences changes the logits, and
reading a cell that the sequence has not written at that position fails at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.spec import ModelSpec, RopeSpec
from backends.base import ExecutorInfo, SequenceStep, Step, StepOutput


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_logits(history: NDArray[np.int64], vocab_size: int) -> NDArray[np.float32]:
    """The logits after a history of token ids, alone: float32 [vocabulary]."""
    positions = np.arange(len(history), dtype=np.uint64)
    state = _mix(history.astype(np.uint64) << np.uint64(32) | positions).sum(dtype=np.uint64)
    spread = _mix(state + np.arange(vocab_size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (spread >> np.uint64(40)).astype(np.float32) / np.float32(2**21)


class NumpyExecutor:
    """Cells hold a token and its position. `before_step` may raise, or wait."""

    def __init__(
        self, vocab_size: int = 64, max_context: int = 64, max_step_tokens: int = 32
    ) -> None:
        spec = ModelSpec(
            architecture="hash",
            name="hash",
            n_layers=1,
            width=1,
            ffn_width=1,
            n_heads=1,
            n_kv_heads=1,
            head_width=1,
            vocab_size=vocab_size,
            context_length=max_context,
            norm_eps=0.0,
            rope=RopeSpec(base=1.0, dimension=0),
            tied_head=True,
            qkv_bias=False,
            qk_norm=False,
            windows=(None,),
        )
        self.info = ExecutorInfo(spec, "numpy", max_step_tokens, max_context, bytes_per_cell=16)
        self.before_step: Callable[[Step], None] = lambda step: None
        self.steps: list[list[tuple[int, int]]] = []
        self.closed = False
        self._cells: NDArray[np.int64] = np.full((0, 2), -1)
        self._busy = threading.Lock()

    def allocate(self, cells: int) -> None:
        self._cells = np.full((cells, 2), -1)

    def step(self, step: Step) -> StepOutput:
        assert self._busy.acquire(blocking=False), "two threads in one executor"
        try:
            self.before_step(step)
            self._check(step)
            self.steps.append([(one.start, len(one.tokens)) for one in step.sequences])
            rows = [row for one in step.sequences for row in self._run(one, step.page_size)]
        finally:
            self._busy.release()
        return StepOutput(np.array(rows, dtype=np.float32).reshape(-1, self.info.spec.vocab_size))

    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise InvalidInputError("there is no vision tower")

    def close(self) -> None:
        self.closed = True

    def _check(self, step: Step) -> None:
        if not 1 <= step.n_tokens <= self.info.max_step_tokens:
            raise InvalidInputError(f"a step of {step.n_tokens} tokens")
        written = np.concatenate(
            [self._cells_of(one, step.page_size)[one.start :] for one in step.sequences]
        )
        assert len(np.unique(written)) == len(written), "two sequences write one cell"

    def _cells_of(self, one: SequenceStep, page_size: int) -> NDArray[np.int64]:
        positions = np.arange(one.start + len(one.tokens))
        return one.pages[positions // page_size].astype(np.int64) * page_size + (
            positions % page_size
        )

    def _run(self, one: SequenceStep, page_size: int) -> list[NDArray[np.float32]]:
        cells = self._cells_of(one, page_size)
        positions = np.arange(len(cells))
        self._cells[cells[one.start :]] = np.stack([one.tokens, positions[one.start :]], axis=1)
        tokens, at = self._cells[cells].T
        assert (at == positions).all(), "a cell read at a position it was not written at"
        first = len(cells) - one.logit_rows
        return [
            hash_logits(tokens[: row + 1], self.info.spec.vocab_size)
            for row in range(first, len(cells))
        ]
