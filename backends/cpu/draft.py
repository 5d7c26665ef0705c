"""Runs an exported block draft, with the cells of its context."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float

import numpy as np
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.models.draft_spec import DraftSpec
from backends.cpu.program import Rows, StepProgram, StepRows
from backends.drafting import DraftOwner, DraftStep

PROGRAM_NAME = "draft.pte"
BLOCK = "draft_block"
CONTEXT = "draft_context"

_NOWHERE = np.zeros(0, dtype=np.int64)


def rows_at_once(max_prefill_chunk: int, spec: DraftSpec) -> int:
    """Rows that the program is made for: those of a step, and at least a block's."""
    return max(max_prefill_chunk, spec.max_block)


class CpuDraft:
    """The draft of an artifact. A block's own keys and values have cells behind all others'."""

    def __init__(
        self, library: ctypes.CDLL, artifact: Artifact, spec: DraftSpec, kv_dtype: str
    ) -> None:
        """Load the program. Raises ArtifactError."""
        self.spec = spec
        self._max_rows = rows_at_once(artifact.manifest.limits.max_prefill_chunk, spec)
        self._program = StepProgram(library, artifact.path / PROGRAM_NAME, spec.layers, kv_dtype)
        self._cells = 0
        self.bytes_per_cell = self._program.bytes_per_cell

    @property
    def _width(self) -> int:
        return len(self.spec.taps) * self.spec.layers.width

    def allocate(self, cells: int) -> bool:
        """Drop what was there; False where the memory cannot be had."""
        self._cells = cells
        return self._program.allocate(cells + self._max_rows)

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
        at_once = max(1, self._max_rows // step.block)
        groups = [
            self._propose(step, step.owners[first : first + at_once])
            for first in range(0, len(step.owners), at_once)
        ]
        return np.concatenate(groups)

    def close(self) -> None:
        self._program.close()

    def _propose(self, step: DraftStep, owners: Sequence[DraftOwner]) -> NDArray[np.int32]:
        block, n = step.block, len(owners)
        tokens = np.full((n, block), self.spec.mask_id, dtype=np.int32)
        tokens[:, 0] = [owner.anchor for owner in owners]
        starts = np.array([owner.start for owner in owners])
        own = self._cells + np.arange(n * block).reshape(n, block)
        wanted = np.arange(n * block).reshape(n, block)[:, 1:]
        logits, _ = self._program.run(
            StepRows(
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
        )
        proposed: NDArray[np.int32] = logits.argmax(axis=1).astype(np.int32)
        return proposed.reshape(n, block - 1)
