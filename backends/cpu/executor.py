"""Runs an exported `.pte` through the native library, which holds keys and values."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_float, c_int32, c_int64
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError
from backends.artifact_vision import check_tower, max_patches
from backends.base import ExecutorInfo, Step, StepOutput, context_limit
from backends.cpu import native
from backends.cpu.vision import VisionEncoder
from backends.packing import check_image, pack

MAX_HEAD_WIDTH = 256
_KV_TYPES = {"float16": 0, "float32": 1}

_MOST_CELLS = 2**63 - 1

# ExecuTorch's thread pool belongs to the process: executors take turns. Its size is that
# of the first one opened while others are.
_running = Lock()


class CpuExecutor:
    """An artifact of the cpu backend, open. Steps release Python's lock while they run."""

    def __init__(self, library: Path, artifact: Artifact, limits: LimitsConfig) -> None:
        """Load the programs. Raises ArtifactError, BackendUnavailableError, InvalidInputError."""
        check_tower(artifact, limits.mmproj)
        _check_heads(artifact)
        spec, vision = artifact.spec, artifact.manifest.vision
        max_context = context_limit(spec, limits.max_context)
        self._native = native.load(library)
        self._program: int | None = None
        self._encoder: VisionEncoder | None = None
        self._cells = 0
        try:
            threads = self._load(artifact, limits)
        except ArtifactError:
            self.close()
            raise
        self._info = ExecutorInfo(
            spec=spec,
            backend="cpu",
            max_step_tokens=artifact.manifest.limits.max_prefill_chunk,
            max_context=max_context,
            bytes_per_cell=self._native.astrai_bytes_per_cell(self._program),
            details={"kv_dtype": limits.kv_dtype, "threads": threads},
            vision=None if vision is None else vision.spec,
            max_vision_patches=max_patches(artifact, limits),
        )

    def _load(self, artifact: Artifact, limits: LimitsConfig) -> int:
        """Load what the artifact has; how many threads run it."""
        spec, vision = artifact.spec, artifact.manifest.vision
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        windows = (c_int64 * spec.n_layers)(*(window or 0 for window in spec.windows))
        program = artifact.path / str(artifact.manifest.details.get("program"))
        with _running:
            threads: int = self._native.astrai_set_threads(limits.threads or _available_cores())
            self._program = self._native.astrai_open(
                os.fsencode(program),
                spec.n_layers,
                spec.n_kv_heads,
                spec.head_width,
                _KV_TYPES[limits.kv_dtype],
                windows,
                error,
            )
            if self._program is None:
                raise ArtifactError(f"{program}: {error.value.decode()}")
            if vision is not None:
                self._encoder = VisionEncoder(self._native, artifact, vision)
        return threads

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def allocate(self, cells: int) -> None:
        if cells < 1:
            raise InvalidInputError(f"cannot allocate {cells} cells; it must be 1 or more")
        self._cells = 0
        program = self._open_program()
        if cells > _MOST_CELLS or self._native.astrai_allocate(program, cells) != 0:
            raise InvalidInputError(
                f"no memory for {cells} cells of {self._info.bytes_per_cell} bytes each"
            )
        self._cells = cells

    def step(self, step: Step) -> StepOutput:
        program = self._open_program()
        packed = pack(step, self._info, self._cells)
        # The program always computes a row of logits; where none is wanted, it is dropped.
        rows = packed.rows if len(packed.rows) else np.zeros(1, dtype=np.int64)
        sequences = (native.Sequence * len(step.sequences))()
        pages = []
        first_row = 0
        for target, sequence in zip(sequences, step.sequences, strict=True):
            pages.append(np.ascontiguousarray(sequence.pages, dtype=np.int32))
            target.first_row, target.rows = first_row, len(sequence.tokens)
            target.start, target.pages = sequence.start, native.pointer(pages[-1], c_int32)
            first_row += len(sequence.tokens)
        embedded = native.Embedded(
            native.pointer(packed.embedded, c_int64),
            native.pointer(packed.embeddings, c_float),
            *packed.embeddings.shape,
        )
        logits = POINTER(c_float)()
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        with _running:
            vocabulary = self._native.astrai_step(
                program,
                native.pointer(packed.tokens, c_int32),
                native.pointer(packed.positions, c_int64),
                native.pointer(packed.cells, c_int64),
                len(packed.tokens),
                native.pointer(rows, c_int64),
                len(rows),
                sequences,
                len(sequences),
                step.page_size,
                ctypes.byref(embedded),
                ctypes.byref(logits),
                error,
            )
        if vocabulary < 0:
            raise ExecutionError(f"the cpu executor failed: {error.value.decode()}")
        output = np.ctypeslib.as_array(logits, (len(rows), vocabulary))
        return StepOutput(output[: len(packed.rows)])

    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        check_image(pixels, self._info)
        if self._encoder is None:
            raise ExecutionError("the executor is closed")
        with _running:
            return self._encoder.encode(pixels)

    def close(self) -> None:
        if self._encoder is not None:
            with _running:
                self._encoder.close()
            self._encoder = None
        if self._program is not None:
            with _running:
                self._native.astrai_close(self._program)
            self._program = None

    def _open_program(self) -> int:
        if self._program is None:
            raise ExecutionError("the executor is closed")
        return self._program


def _check_heads(artifact: Artifact) -> None:
    vision = artifact.manifest.vision
    widths = {"heads": artifact.spec.head_width}
    if vision is not None:
        widths["the vision tower's heads"] = vision.spec.head_width
    for what, width in widths.items():
        if width > MAX_HEAD_WIDTH:
            raise ArtifactError(
                f"{artifact.path}: {what} are {width} wide; "
                f"the cpu backend runs up to {MAX_HEAD_WIDTH}"
            )


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
