"""Runs an artifact with PyTorch, on a GPU or, for tests, on the processor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ExecutionError, InvalidInputError
from astrai_cli.models.decoder import Decoder
from astrai_cli.models.vision import VisionTower
from astrai_cli.models.vision_spec import normalised
from backends.artifact_draft import draft_to_open
from backends.artifact_vision import check_tower, max_patches
from backends.base import ALL_TOKENS, CellBounds, ExecutorInfo, Step, StepOutput, context_limit
from backends.cuda import kernels
from backends.cuda.attention import CellPool
from backends.cuda.build import use_cache_folder
from backends.cuda.device import choose_device, device_name, free_memory, naming_memory
from backends.cuda.draft import CudaDraft
from backends.cuda.forward import StaticForward, prepare_static, run_others
from backends.cuda.inputs import Layout
from backends.cuda.loading import load_decoder, load_draft, load_tower
from backends.cuda.results import RunningStep, failure
from backends.drafting import DraftStep, check_draft
from backends.packing import PackedStep, check_image, pack

# Sequences, snapshots and capture slots.
MAX_RESIDENT = 64


class CudaExecutor:
    """An artifact of the cuda backend, open.

    A step reaches the device in one copy and comes back in one, and the host waits for
    nothing but the latter. Until then it may launch the next.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        decoder: Decoder,
        tower: VisionTower | None,
        forward_sizes: Sequence[int],
        dtype: torch.dtype,
        *,
        draft: CudaDraft | None = None,
    ) -> None:
        """forward_sizes: the counts of sequences to prepare steps for, ascending.

        dtype: of keys and values. draft: on the same device, where there is one.
        """
        self._info = info
        self._decoder: Decoder | None = decoder
        self._tower = tower
        self._sizes = forward_sizes
        self._dtype = dtype
        self._draft = draft
        self._device = decoder.rope_frequencies.device
        self._pool: CellPool | None = None
        self._static: list[StaticForward] = []
        # What the last step drew, int32 [draws].
        self._drawn = torch.zeros(0, dtype=torch.int32, device=self._device)

    @classmethod
    def open(cls, artifact: Artifact, limits: LimitsConfig) -> CudaExecutor:
        """Load model and tower.

        Raises ArtifactError, InvalidInputError, ModelFileError, and BackendUnavailableError
        where the device is not there.
        """
        check_tower(artifact, limits.mmproj)
        max_context = context_limit(artifact.spec, limits.max_context)
        use_cache_folder()
        if limits.threads is not None:
            torch.set_num_threads(limits.threads)
        device = choose_device(limits.device)
        path, spec, vision = artifact.path, artifact.spec, artifact.manifest.vision
        details = artifact.manifest.details
        dtype: torch.dtype = getattr(torch, details["activation_dtype"])
        packed = kernels.available(device)
        drafting = draft_to_open(artifact, limits)
        draft = None
        with naming_memory(device, f"the weights of {path.name}"):
            decoder = load_decoder(path, spec, dtype, device, packed=packed)
            if drafting is not None:
                draft = CudaDraft(
                    load_draft(path, drafting.spec, dtype, device),
                    decoder,
                    n_tokens=limits.dflash_n_draft,
                    max_owners=drafting.max_owners,
                )
            tower = None if vision is None else load_tower(path, vision.spec, dtype, device)
        info = ExecutorInfo(
            spec=spec,
            backend="cuda",
            max_step_tokens=details["max_step_tokens"],
            max_context=max_context,
            bytes_per_cell=spec.kv_values_per_token * dtype.itemsize
            + (0 if draft is None else draft.bytes_per_cell),
            details={"kv_dtype": details["activation_dtype"], "device": device_name(device)},
            vision=None if vision is None else vision.spec,
            max_vision_patches=max_patches(artifact, limits),
            max_top_k=0 if details["logits"] else ALL_TOKENS,
            changes_logits=not details["logits"],
            cell_bounds=CellBounds(details["max_cells"], MAX_RESIDENT),
            draft=None if drafting is None else drafting.spec,
            max_draft_owners=0 if drafting is None else drafting.max_owners,
            draft_max_cells=None if drafting is None else drafting.max_cells,
        )
        return cls(info, decoder, tower, details["forward_sizes"], dtype, draft=draft)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @torch.inference_mode()
    def allocate(self, cells: int) -> None:
        if cells < 1:
            raise InvalidInputError(f"cannot allocate {cells} cells; it must be 1 or more")
        decoder = self._open_decoder()
        self._drop_cells()
        size = self._info.bytes_per_cell
        with naming_memory(self._device, f"{cells} cells of {size} bytes each"):
            pool = CellPool(self._info.spec, cells, self._dtype, self._device)
            if self._draft is not None:
                self._draft.allocate(cells, self._info.max_context)
            self._static = prepare_static(
                decoder, pool, self._sizes, self._info.max_context, self._draft
            )
        self._pool = pool

    def step(self, step: Step) -> StepOutput:
        return self.launch(step).result()

    @torch.inference_mode()
    def launch(self, step: Step) -> RunningStep:
        decoder = self._open_decoder()
        n_cells = 0 if self._pool is None else self._pool.n_cells
        packed = pack(step, self._info, n_cells, len(self._drawn))
        assert self._pool is not None
        layout = Layout.of(step, packed, kernels.tile_rows(self._info.spec))
        try:
            running = RunningStep(self._forward(decoder, self._pool, layout, packed), step)
        except torch.OutOfMemoryError as error:
            raise ExecutionError(self._out_of_memory(step)) from error
        except RuntimeError as error:
            raise failure(error) from error
        self._drawn = running.drawn
        return running

    @torch.inference_mode()
    def draft(self, step: DraftStep) -> NDArray[np.int32]:
        self._open_decoder()
        check_draft(step, self._info, 0 if self._pool is None else self._pool.n_cells)
        assert self._draft is not None
        try:
            return self._draft.propose(step)
        except RuntimeError as error:
            raise failure(error) from error

    @torch.inference_mode()
    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        spec = check_image(pixels, self._info)
        if self._tower is None:
            raise ExecutionError("the executor is closed")
        try:
            rows: Tensor = self._tower(torch.from_numpy(normalised(pixels, spec)))
        except torch.OutOfMemoryError as error:
            height, width, _ = pixels.shape
            raise ExecutionError(
                f"no memory for an image of {width} × {height} pixels"
                f"{free_memory(self._device)}; lower max_vision_patches or max_cells"
            ) from error
        except RuntimeError as error:
            raise failure(error) from error
        return rows.cpu().numpy()

    def close(self) -> None:
        self._decoder = self._tower = self._draft = None
        self._drop_cells()

    def _forward(
        self, decoder: Decoder, pool: CellPool, layout: Layout, packed: PackedStep
    ) -> Tensor:
        """Logits [R, vocabulary] of the rows wanted."""
        is_single = all(group.count == 1 for group in layout.groups)
        if is_single and not len(packed.embedded):
            for forward in self._static:
                if forward.size >= layout.n_rows:
                    padded = layout.padded(forward.size, pool.padding)
                    logits, inputs = forward(padded, self._drawn)
                    return logits.index_select(0, inputs.wanted)
        return run_others(
            decoder, pool, layout, packed.embeddings, draft=self._draft, drawn=self._drawn
        )

    def _open_decoder(self) -> Decoder:
        if self._decoder is None:
            raise ExecutionError("the executor is closed")
        return self._decoder

    def _drop_cells(self) -> None:
        self._pool = None
        self._static = []
        if self._draft is not None:
            self._draft.drop_cells()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _out_of_memory(self, step: Step) -> str:
        """What to say of a step that the device had no memory for, whose memory is freed."""
        memory = free_memory(self._device)
        assert self._pool is not None
        return (
            f"no memory for a step of {step.n_tokens} tokens in {len(step.sequences)} sequences "
            f"beside {self._pool.n_cells} cells of {self._info.bytes_per_cell} bytes{memory}; "
            "lower max_cells, max_step_tokens or max_prefill_chunk"
        )
