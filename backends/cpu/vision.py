"""Runs an exported vision tower, without PyTorch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import c_float, c_int64

import numpy as np
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.errors import ArtifactError, ExecutionError
from astrai_cli.manifest import ArtifactVision
from astrai_cli.models.vision_layout import PatchLayout, split_patches
from astrai_cli.models.vision_spec import normalised
from backends.artifact_vision import read_positions
from backends.cpu import native

PROGRAM_NAME = "vision.pte"
PROJECTOR = "vision_projector"
ENCODER = "vision_encoder"
# Rows that a method is given at once: enough for full speed, and few to plan memory for.
ROWS_AT_ONCE = 256

Rows = NDArray[np.float32]


def encoder_method(layer: int) -> str:
    """The method that ends before the attention of a layer; the last one ends with the norm."""
    return f"{ENCODER}_{layer}"


class VisionEncoder:
    """The tower of an artifact, open. The caller sees to it that nothing else runs beside it."""

    def __init__(self, library: ctypes.CDLL, artifact: Artifact, vision: ArtifactVision) -> None:
        """Load the program. Raises ArtifactError."""
        self._native = library
        self._spec = vision.spec
        self._table = read_positions(artifact.path, vision.spec)
        self._error = ctypes.create_string_buffer(native.ERROR_BYTES)
        program = artifact.path / PROGRAM_NAME
        self._tower: int | None = library.astrai_open_tower(os.fsencode(program), self._error)
        if self._tower is None:
            raise ArtifactError(f"{program}: {self._error.value.decode()}")

    def encode(self, pixels: NDArray[np.uint8]) -> Rows:
        """Embeddings [cells, text width] of a prepared image. Raises ExecutionError.

        Memory: seven rows of the tower's width for a patch, and the keys and values of
        one layer in whole tiles.
        """
        spec = self._spec
        rows, columns = (size // spec.patch_size for size in pixels.shape[:2])
        layout = PatchLayout.of(rows, columns, spec)
        angles = layout.angles(spec)
        inputs = (
            split_patches(normalised(pixels, spec), spec)[layout.order],
            layout.positions(self._table),
        )
        q, k, v, h, attended = (self._empty(len(angles), spec.width) for _ in range(5))
        for layer in range(spec.n_layers):
            self._run(encoder_method(layer), (*inputs, angles), (q, k, v, h))
            self._attend((q, k, v), layout.groups(layer, spec), attended)
            inputs = (attended, h)
        self._run(encoder_method(spec.n_layers), inputs, (h,))
        cells = layout.merge(h, spec)
        embeddings = self._empty(len(cells), spec.text_width)
        self._run(PROJECTOR, (cells,), (embeddings,))
        return embeddings

    def close(self) -> None:
        if self._tower is not None:
            self._native.astrai_close_tower(self._tower)
        self._tower = None

    def _run(self, method: str, inputs: Sequence[Rows], outputs: Sequence[Rows]) -> None:
        """Map all rows, some at a time; outputs may be inputs too."""
        for begin in range(0, len(inputs[0]), ROWS_AT_ONCE):
            part = slice(begin, begin + ROWS_AT_ONCE)
            self._check(
                self._native.astrai_run_tower(
                    self._tower,
                    method.encode(),
                    _matrices([rows[part] for rows in inputs]),
                    len(inputs),
                    _matrices([rows[part] for rows in outputs]),
                    len(outputs),
                    self._error,
                )
            )

    def _attend(self, qkv: Sequence[Rows], groups: NDArray[np.int64], out: Rows) -> None:
        spec = self._spec
        self._check(
            self._native.astrai_attend_groups(
                *(native.pointer(rows, c_float) for rows in qkv),
                spec.n_heads,
                spec.head_width,
                spec.head_width**-0.5,
                native.pointer(groups, c_int64),
                len(groups),
                native.pointer(out, c_float),
                self._error,
            )
        )

    def _check(self, status: int) -> None:
        if status < 0:
            raise ExecutionError(f"the cpu executor failed: {self._error.value.decode()}")

    @staticmethod
    def _empty(rows: int, width: int) -> Rows:
        try:
            return np.empty((rows, width), dtype=np.float32)
        except MemoryError:
            raise ExecutionError(f"no memory for {rows} rows of {width} numbers") from None


def _matrices(arrays: Sequence[Rows]) -> ctypes.Array[native.Matrix]:
    matrices = (native.Matrix(native.pointer(rows, c_float), *rows.shape) for rows in arrays)
    return (native.Matrix * len(arrays))(*matrices)
