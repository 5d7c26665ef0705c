"""Runs an artifact folder with MLX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError
from astrai_cli.models.spec import ModelSpec
from backends.artifact_draft import draft_to_open
from backends.artifact_vision import check_tower, max_patches
from backends.base import ExecutorInfo, Step, StepOutput, context_limit, drawn_token
from backends.drafting import DraftStep, check_draft
from backends.mlx.cells import CellPool, group_sequences
from backends.mlx.device import on_device
from backends.mlx.draft import MlxDraft
from backends.mlx.packed import PackedModel, PackedRows
from backends.mlx.sampling import MAX_TOP_K, draw_tokens
from backends.mlx.vision import VisionEncoder
from backends.packing import PackedStep, check_image, pack, split_rows

# Buffers that MLX keeps for reuse: enough for a step's intermediates.
_FREE_BUFFER_BYTES = 2**30
# Below this, 1 minus a mean square is what float32 has rounded.
_LEAST_GAP = 1e-7


class RunningStep:
    """A step that MLX computes while the host goes on."""

    def __init__(self, executor: MlxExecutor, logits: mx.array, tokens: mx.array) -> None:
        """logits: float32 [rows, vocabulary]. tokens: int32 [draws]. Both under way."""
        self._executor = executor
        self._logits = logits
        self._tokens = tokens

    @on_device
    def result(self) -> StepOutput:
        try:
            mx.eval(self._logits, self._tokens)
        except Exception as error:
            self._executor.recover(error)
        return StepOutput(np.asarray(self._logits), np.asarray(self._tokens).tolist())


class MlxExecutor:
    """An artifact of the mlx backend, open; all of it happens in the device's thread."""

    @on_device
    def __init__(self, artifact: Artifact, limits: LimitsConfig) -> None:
        """Load model and tower. Raises ArtifactError, InvalidInputError, ModelFileError."""
        check_tower(artifact, limits.mmproj)
        spec, vision = artifact.spec, artifact.manifest.vision
        max_context = context_limit(spec, limits.max_context)
        _bound_memory()
        self._model: PackedModel | None = _load(artifact.path)
        self._encoder = None if vision is None else VisionEncoder(artifact.path, vision.spec)
        self._dtype: mx.Dtype = getattr(mx, artifact.manifest.details["activation_dtype"])
        self._draft: MlxDraft | None = None
        if (draft := draft_to_open(artifact, limits)) is not None:
            self._draft = MlxDraft(artifact.path, draft.spec, self._dtype)
            self._model.tap(draft.spec.taps)
        self._pool: CellPool | None = None
        # What the last step drew, int32 [draws].
        self._drawn = mx.zeros(0, mx.int32)
        self._info = ExecutorInfo(
            spec=spec,
            backend="mlx",
            max_step_tokens=artifact.manifest.limits.max_prefill_chunk,
            max_context=max_context,
            bytes_per_cell=spec.kv_values_per_token * self._dtype.size
            + (0 if self._draft is None else self._draft.bytes_per_cell),
            details={
                "kv_dtype": artifact.manifest.details["activation_dtype"],
                "device": str(mx.default_device().type).rpartition(".")[2],
            },
            vision=None if vision is None else vision.spec,
            max_vision_patches=max_patches(artifact, limits),
            max_top_k=MAX_TOP_K,
            draft=None if draft is None else draft.spec,
            max_draft_owners=0 if draft is None else draft.max_owners,
            draft_max_cells=None if draft is None else draft.max_cells,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @on_device
    def allocate(self, cells: int) -> None:
        if cells < 1:
            raise InvalidInputError(f"cannot allocate {cells} cells; it must be 1 or more")
        model, spec = self._open_model(), self._info.spec
        self._pool = None
        mx.clear_cache()
        no_memory = InvalidInputError(
            f"no memory for {cells} cells of {self._info.bytes_per_cell} bytes each"
        )
        # Asked for more than there is, a system may end the process instead of refusing.
        if cells * self._info.bytes_per_cell > _memory_bytes():
            raise no_memory
        try:
            pool = CellPool(spec.n_layers, cells, spec.n_kv_heads, spec.head_width, self._dtype)
            if self._draft is not None:
                self._draft.allocate(cells)
            mx.eval(pool.arrays, self._draft_arrays())
        except RuntimeError as error:
            raise no_memory from error
        self._pool = model.pool = pool

    @on_device
    def step(self, step: Step) -> StepOutput:
        return self.launch(step).result()

    @on_device
    def launch(self, step: Step) -> RunningStep:
        model = self._open_model()
        n_cells = 0 if self._pool is None else self._pool.n_cells
        packed = pack(step, self._info, n_cells, self._drawn.size)
        drawn, others = map(_int32, split_rows(step))
        try:
            rows = model(_on_device(step, packed, self._info.spec, self._drawn)).astype(mx.float32)
            if self._draft is not None:
                self._draft.keep(model)
            tokens = draw_tokens(rows[drawn], step.draws) if drawn.size else mx.zeros(0, mx.int32)
            logits = rows[others]
            mx.async_eval(logits, tokens, model.pool.arrays, self._draft_arrays())
        except Exception as error:
            self.recover(error)
        self._drawn = tokens
        return RunningStep(self, logits, tokens)

    @on_device
    def draft(self, step: DraftStep) -> NDArray[np.int32]:
        check_draft(step, self._info, 0 if self._pool is None else self._pool.n_cells)
        model = self._open_model()
        assert self._draft is not None
        try:
            return np.asarray(self._draft.propose(step, model))
        except Exception as error:
            raise ExecutionError(f"the mlx executor failed: {error}") from error

    @on_device
    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        check_image(pixels, self._info)
        if self._encoder is None:
            raise ExecutionError("the executor is closed")
        try:
            return self._encoder.encode(pixels)
        except Exception as error:
            raise ExecutionError(f"the mlx executor failed: {error}") from error

    @on_device
    def close(self) -> None:
        self._model = self._encoder = self._pool = self._draft = None
        mx.clear_cache()

    def _draft_arrays(self) -> list[mx.array]:
        return [] if self._draft is None else self._draft.pool.arrays

    def _open_model(self) -> PackedModel:
        if self._model is None:
            raise ExecutionError("the executor is closed")
        return self._model

    def recover(self, error: Exception) -> NoReturn:
        """Bring the cells back to what earlier steps left, as far as that can be done.

        A step writes only its own cells, so what it wrote before it failed harms nobody.
        Raises ExecutionError.
        """
        self._drawn = mx.zeros(0, mx.int32)
        try:
            mx.eval(self._open_model().pool.arrays, self._draft_arrays())
        except RuntimeError:
            self.close()
        raise ExecutionError(f"the mlx executor failed: {error}") from error


def _memory_bytes() -> int:
    """What the machine has; on Apple Silicon the device has the same."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _load(folder: Path) -> PackedModel:
    try:
        model, _ = load_model(folder)
    except Exception as error:
        # mlx-lm checks files by using them, so anything may be raised for those altered.
        raise ArtifactError(f"{folder} cannot be loaded by mlx-lm: {error}") from error
    return PackedModel(model)


def _bound_memory() -> None:
    """Keep what the device recommends resident, and few buffers that are free."""
    mx.set_cache_limit(_FREE_BUFFER_BYTES)
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def _on_device(step: Step, packed: PackedStep, spec: ModelSpec, drawn: mx.array) -> PackedRows:
    """drawn: what the step before drew, int32 [draws]."""
    groups, order = group_sequences(step)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    # A head always computes a row; where none is wanted, it is dropped.
    rows = place[packed.rows] if len(packed.rows) else np.zeros(1, dtype=np.int64)
    return PackedRows(
        groups=groups,
        tokens=_put_drawn(packed.tokens[order], drawn),
        positions=_int32(packed.positions[order]),
        cells=_int32(packed.cells[order]),
        rows=_int32(rows),
        embedded=_int32(place[packed.embedded]),
        embeddings=mx.array(_before_norm(packed.embeddings, spec)),
    )


def _put_drawn(tokens: NDArray[np.int32], drawn: mx.array) -> mx.array:
    """The ids, with the tokens drawn in the places of those that stand for them.

    One that could not be drawn becomes 0: nobody will ask what follows it.
    """
    places = drawn_token(0) - tokens
    if places.max() < 0:
        return _int32(tokens)
    ids = mx.maximum(drawn, 0)[mx.array(places.clip(min=0))]
    return mx.where(mx.array(places >= 0), ids, _int32(tokens))


def _before_norm(rows: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Rows [n, width] that the model's norm of embeddings turns into `rows`.

    mlx-lm norms whatever its embedding gives, and a tower's rows have passed that norm. The
    gain g solves g / sqrt(g² s + epsilon) = 1, where s is a row's mean square.
    """
    if not spec.embedding_norm or not len(rows):
        return rows
    square = np.square(rows, dtype=np.float64).mean(axis=1, keepdims=True)
    gain = np.sqrt(spec.norm_eps / np.maximum(1 - square, _LEAST_GAP))
    raw: NDArray[np.float32] = (rows * gain).astype(np.float32)
    return raw


def _int32(values: NDArray[np.integer]) -> mx.array:
    return mx.array(values.astype(np.int32))
