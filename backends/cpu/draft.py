"""Runs an exported block draft, with the cells of its context."""

from __future__ import annotations

import ctypes
from ctypes import c_float
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.manifest import ArtifactDraft
from backends.cpu.program import Rows, StepProgram, StepRows
from backends.drafting import DraftStep

PROGRAM_NAME = "draft.pte"
BLOCK = "draft_block"
CONTEXT = "draft_context"

_NOWHERE = np.zeros(0, dtype=np.int64)


class CpuDraft:
    """The draft of an artifact. A block's own keys and values have cells behind all others'."""

    def __init__(
        self, library: ctypes.CDLL, folder: Path, draft: ArtifactDraft, kv_dtype: str
    ) -> None:
        """Load the program. Raises ArtifactError."""
        self.spec = spec = draft.spec
        self.max_owners = draft.max_owners
        self.max_cells = draft.max_cells
        self._program = StepProgram(library, folder / PROGRAM_NAME, spec.layers, kv_dtype)
        self._cells = 0
        self.bytes_per_cell = self._program.bytes_per_cell

    @property
    def _width(self) -> int:
        return len(self.spec.taps) * self.spec.layers.width

    def allocate(self, cells: int) -> bool:
        """Drop what was there; False where the memory cannot be had."""
        self._cells = cells
        return self._program.allocate(cells + self.max_owners * self.spec.max_block)

    def keep(
        self,
        taps: ctypes._Pointer[c_float],
        positions: NDArray[np.int64],
        cells: NDArray[np.int64],
    ) -> None:
        """Give the tokens whose layers were tapped their rows of the context."""
        self._program.fill(taps, self._width, positions, cells)

    def propose(self, step: DraftStep) -> NDArray[np.int32]:
        """int32 [owners, block - 1]. Raises ExecutionError."""
        logits, _ = self._program.run(self.rows(step))
        proposed: NDArray[np.int32] = logits.argmax(axis=1).astype(np.int32)
        return proposed.reshape(len(step.owners), step.block - 1)

    def rows(self, step: DraftStep) -> StepRows:
        """What the program runs for the step; the logits of anchors are not wanted."""
        owners = step.owners
        block, n = step.block, len(owners)
        tokens = np.full((n, block), self.spec.mask_id, dtype=np.int32)
        tokens[:, 0] = [owner.anchor for owner in owners]
        starts = np.array([owner.start for owner in owners])
        own = self._cells + np.arange(n * block).reshape(n, block)
        wanted = np.arange(n * block).reshape(n, block)[:, 1:]
        return StepRows(
            tokens=tokens.reshape(-1),
            positions=(starts[:, None] + np.arange(block)).reshape(-1),
            cells=own.reshape(-1),
            wanted=np.ascontiguousarray(wanted.reshape(-1)),
            # Pages of one cell each lead from the context's cells to the block's own.
            sequences=[
                Rows(
                    owner.start,
                    block,
                    np.concatenate([owner.context_cells(step.page_size), cells]),
                )
                for owner, cells in zip(owners, own, strict=True)
            ],
            page_size=1,
            embedded=_NOWHERE,
            embeddings=np.zeros((0, self.spec.layers.width), dtype=np.float32),
            causal=False,
        )

    def close(self) -> None:
        self._program.close()
