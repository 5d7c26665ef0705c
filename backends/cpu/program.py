"""An exported decoder, loaded by the native library, with the cells of its keys and values."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_int64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ArtifactError, ExecutionError
from astrai_cli.models.spec import ModelSpec
from backends.cpu import native

_KV_TYPES = {"float16": 0, "float32": 1}
_MOST_CELLS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one sequence in a step: `count` from position `start` on; its pages, int32."""

    start: int
    count: int
    pages: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step runs: tokens int32 [T], positions and cells int64 [T], of these sequences.

    wanted: int64 [R], the rows whose logits are wanted, at least one. embedded and
    embeddings: as in PackedStep. causal: a row sees itself and those before it, else all.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]
    cells: NDArray[np.int64]
    wanted: NDArray[np.int64]
    sequences: Sequence[Rows]
    page_size: int
    embedded: NDArray[np.int64]
    embeddings: NDArray[np.float32]
    causal: bool = True


class StepProgram:
    """One `.pte` with the method `forward`. Used by one thread at a time of the process.

    bytes_per_cell: of keys and values.
    """

    def __init__(self, library: ctypes.CDLL, path: Path, spec: ModelSpec, kv_dtype: str) -> None:
        """Load it. Raises ArtifactError."""
        self._native = library
        self._error = ctypes.create_string_buffer(native.ERROR_BYTES)
        windows = (c_int64 * spec.n_layers)(*(window or 0 for window in spec.windows))
        self._handle: int | None = library.astrai_open(
            os.fsencode(path),
            spec.n_layers,
            spec.n_kv_heads,
            spec.head_width,
            _KV_TYPES[kv_dtype],
            windows,
            self._error,
        )
        if self._handle is None:
            raise ArtifactError(f"{path}: {self._error.value.decode()}")
        self.bytes_per_cell: int = library.astrai_bytes_per_cell(self._handle)

    def allocate(self, cells: int) -> bool:
        """Drop what was there; False where the memory cannot be had."""
        return cells <= _MOST_CELLS and not self._native.astrai_allocate(self._open(), cells)

    def run(self, step: StepRows) -> tuple[NDArray[np.float32], ctypes._Pointer[c_float]]:
        """Logits float32 [R, vocabulary], and where the taps are; valid until the next run.

        Raises ExecutionError.
        """
        sequences = (native.Sequence * len(step.sequences))()
        pages = []
        first_row = 0
        for target, rows in zip(sequences, step.sequences, strict=True):
            pages.append(np.ascontiguousarray(rows.pages, dtype=np.int32))
            target.first_row, target.rows = first_row, rows.count
            target.start, target.pages = rows.start, native.pointer(pages[-1], c_int32)
            first_row += rows.count
        embedded = native.Embedded(
            native.pointer(step.embedded, c_int64),
            native.pointer(step.embeddings, c_float),
            *step.embeddings.shape,
        )
        logits, taps = POINTER(c_float)(), POINTER(c_float)()
        vocabulary = self._native.astrai_step(
            self._open(),
            native.pointer(step.tokens, c_int32),
            native.pointer(step.positions, c_int64),
            native.pointer(step.cells, c_int64),
            len(step.tokens),
            native.pointer(step.wanted, c_int64),
            len(step.wanted),
            sequences,
            len(sequences),
            step.page_size,
            step.causal,
            ctypes.byref(embedded),
            ctypes.byref(logits),
            ctypes.byref(taps),
            self._error,
        )
        if vocabulary < 0:
            raise ExecutionError(f"the cpu executor failed: {self._error.value.decode()}")
        return np.ctypeslib.as_array(logits, (len(step.wanted), vocabulary)), taps

    def fill(
        self,
        rows: ctypes._Pointer[c_float],
        width: int,
        positions: NDArray[np.int64],
        cells: NDArray[np.int64],
    ) -> None:
        """Give cells the keys and values of rows of `width` numbers. Raises ExecutionError."""
        status = self._native.astrai_fill(
            self._open(),
            rows,
            width,
            native.pointer(positions, c_int64),
            native.pointer(cells, c_int64),
            len(cells),
            self._error,
        )
        if status < 0:
            raise ExecutionError(f"the cpu executor failed: {self._error.value.decode()}")

    def close(self) -> None:
        if self._handle is not None:
            self._native.astrai_close(self._handle)
        self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            raise ExecutionError("the executor is closed")
        return self._handle
