"""Runs an exported `.pte` through the native library, which holds keys and values."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError
from backends.artifact_draft import draft_to_open
from backends.artifact_vision import check_tower, max_patches
from backends.base import ExecutorInfo, Step, StepOutput, context_limit
from backends.cpu import native
from backends.cpu.draft import CpuDraft
from backends.cpu.program import Rows, StepProgram, StepRows
from backends.cpu.vision import VisionEncoder
from backends.drafting import DraftStep, check_draft
from backends.packing import check_image, pack

MAX_HEAD_WIDTH = 256

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
        self._program: StepProgram | None = None
        self._encoder: VisionEncoder | None = None
        self._draft: CpuDraft | None = None
        self._cells = 0
        try:
            threads = self._load(artifact, limits)
        except ArtifactError:
            self.close()
            raise
        draft = self._draft
        self._info = ExecutorInfo(
            spec=spec,
            backend="cpu",
            max_step_tokens=artifact.manifest.limits.max_prefill_chunk,
            max_context=max_context,
            bytes_per_cell=self._open_program().bytes_per_cell
            + (0 if draft is None else draft.bytes_per_cell),
            details={"kv_dtype": limits.kv_dtype, "threads": threads},
            vision=None if vision is None else vision.spec,
            max_vision_patches=max_patches(artifact, limits),
            draft=None if draft is None else draft.spec,
            max_draft_owners=0 if draft is None else draft.max_owners,
            draft_max_cells=None if draft is None else draft.max_cells,
        )

    def _load(self, artifact: Artifact, limits: LimitsConfig) -> int:
        """Load what the artifact has; how many threads run it."""
        spec, vision = artifact.spec, artifact.manifest.vision
        path = artifact.path / str(artifact.manifest.details.get("program"))
        draft = draft_to_open(artifact, limits)
        with _running:
            threads: int = self._native.astrai_set_threads(limits.threads or _available_cores())
            self._program = StepProgram(self._native, path, spec, limits.kv_dtype)
            if vision is not None:
                self._encoder = VisionEncoder(self._native, artifact, vision)
            if draft is not None:
                self._draft = CpuDraft(self._native, artifact.path, draft, limits.kv_dtype)
        return threads

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def allocate(self, cells: int) -> None:
        if cells < 1:
            raise InvalidInputError(f"cannot allocate {cells} cells; it must be 1 or more")
        self._cells = 0
        has_room = self._open_program().allocate(cells)
        if not has_room or (self._draft is not None and not self._draft.allocate(cells)):
            raise InvalidInputError(
                f"no memory for {cells} cells of {self._info.bytes_per_cell} bytes each"
            )
        self._cells = cells

    def step(self, step: Step) -> StepOutput:
        program = self._open_program()
        packed = pack(step, self._info, self._cells)
        rows = StepRows(
            packed.tokens,
            packed.positions,
            packed.cells,
            # The program always computes a row of logits; where none is wanted, it is dropped.
            wanted=packed.rows if len(packed.rows) else np.zeros(1, dtype=np.int64),
            sequences=[Rows(each.start, len(each.tokens), each.pages) for each in step.sequences],
            page_size=step.page_size,
            embedded=packed.embedded,
            embeddings=packed.embeddings,
        )
        with _running:
            logits, taps = program.run(rows)
            if self._draft is not None:
                self._draft.keep(taps, packed.positions, packed.cells)
        return StepOutput(logits[: len(packed.rows)])

    def draft(self, step: DraftStep) -> NDArray[np.int32]:
        check_draft(step, self._info, self._cells)
        if self._draft is None:
            raise ExecutionError("the executor is closed")
        with _running:
            return self._draft.propose(step)

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
        with _running:
            for program in (self._program, self._draft):
                if program is not None:
                    program.close()
        self._program = self._draft = None

    def _open_program(self) -> StepProgram:
        if self._program is None:
            raise ExecutionError("the executor is closed")
        return self._program


def _check_heads(artifact: Artifact) -> None:
    vision = artifact.manifest.vision
    widths = {"heads": artifact.spec.head_width}
    if vision is not None:
        widths["the vision tower's heads"] = vision.spec.head_width
    if artifact.manifest.draft is not None:
        widths["the draft's heads"] = artifact.manifest.draft.spec.layers.head_width
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
