"""The float32 reference: plain PyTorch, attending one sequence at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ExecutionError, InvalidInputError
from astrai_cli.models.decoder import Decoder
from astrai_cli.models.draft import load_draft
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.loader import load_decoder
from astrai_cli.models.source import open_source, open_vision
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.vision import load_vision_tower
from astrai_cli.models.vision_spec import normalised
from backends.base import (
    ExecutorInfo,
    SequenceStep,
    Step,
    StepOutput,
    context_limit,
    vision_patch_limit,
)
from backends.drafting import DraftStep, check_draft
from backends.eager.draft import EagerDraft
from backends.packing import check_image, pack

MAX_STEP_TOKENS = 512


class EagerExecutor:
    """Runs a model in float32; keys and values are float32 too, whatever `kv_dtype` says."""

    def __init__(self, source: Path, limits: LimitsConfig) -> None:
        """Load the model, the tower of `limits.mmproj` and, for dflash, the draft of `draft_gguf`.

        Raises ModelFileError.
        """
        if limits.threads is not None:
            torch.set_num_threads(limits.threads)
        with open_source(source) as model:
            spec = model.spec
            self._decoder: Decoder | None = load_decoder(model.weights)
            with open_vision(model, limits.mmproj) as tower:
                self._tower = None if tower is None else load_vision_tower(tower)
            with open_draft(model, limits.draft_gguf) as draft:
                self._draft = None
                if draft is not None and limits.dflash:
                    self._draft = EagerDraft(load_draft(draft))
        self._info = ExecutorInfo(
            spec=spec,
            backend="eager",
            max_step_tokens=MAX_STEP_TOKENS,
            max_context=context_limit(spec, limits.max_context),
            bytes_per_cell=spec.kv_values_per_token * torch.float32.itemsize
            + (0 if self._draft is None else self._draft.bytes_per_cell),
            details={"kv_dtype": "float32", "threads": torch.get_num_threads()},
            vision=None if self._tower is None else self._tower.spec,
            max_vision_patches=(
                0 if self._tower is None else vision_patch_limit(limits.max_vision_patches)
            ),
            draft=None if self._draft is None else self._draft.spec,
            max_draft_owners=0 if self._draft is None else MAX_STEP_TOKENS,
        )
        self._drop_cells()

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def allocate(self, cells: int) -> None:
        if cells < 1:
            raise InvalidInputError(f"cannot allocate {cells} cells; it must be 1 or more")
        spec = self._info.spec
        self._drop_cells()
        shape = (spec.n_layers, cells, spec.n_kv_heads, spec.head_width)
        try:
            self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
            if self._draft is not None:
                self._draft.allocate(cells)
        except RuntimeError as error:
            raise InvalidInputError(
                f"no memory for {cells} cells of {self._info.bytes_per_cell} bytes each"
            ) from error

    @torch.inference_mode()
    def step(self, step: Step) -> StepOutput:
        if self._decoder is None:
            raise ExecutionError("the executor is closed")
        packed = pack(step, self._info, cells=self._keys.shape[1])
        cells = torch.from_numpy(packed.cells)
        sequences = [_SequenceView(s, step.page_size, self._info.spec) for s in step.sequences]

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[cells] = k.squeeze(2)
            values[cells] = v.squeeze(2)
            queries = torch.split(q.squeeze(2), [view.n_queries for view in sequences])
            outputs = [
                view.attend(rows, keys, values, layer)
                for view, rows in zip(sequences, queries, strict=True)
            ]
            return torch.cat(outputs).unsqueeze(2)

        try:
            h = self._decoder.embed(torch.from_numpy(packed.tokens))
            h[torch.from_numpy(packed.embedded)] = torch.from_numpy(packed.embeddings)
            logits = self._decoder(
                h,
                torch.from_numpy(packed.positions),
                torch.from_numpy(packed.rows),
                attend,
                self._tap,
            )
            if self._draft is not None:
                self._draft.keep(torch.from_numpy(packed.positions), cells)
        except RuntimeError as error:
            raise ExecutionError(f"the eager executor failed: {error}") from error
        return StepOutput(logits.numpy())

    @torch.inference_mode()
    def draft(self, step: DraftStep) -> NDArray[np.int32]:
        check_draft(step, self._info, cells=self._keys.shape[1])
        if self._draft is None or self._decoder is None:
            raise ExecutionError("the executor is closed")
        try:
            return self._draft.propose(step, self._decoder)
        except RuntimeError as error:
            raise ExecutionError(f"the eager executor failed: {error}") from error

    @torch.inference_mode()
    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        spec = check_image(pixels, self._info)
        if self._tower is None:
            raise ExecutionError("the executor is closed")
        try:
            rows: Tensor = self._tower(torch.from_numpy(normalised(pixels, spec)))
        except RuntimeError as error:
            raise ExecutionError(f"the eager executor failed: {error}") from error
        return rows.numpy()

    def close(self) -> None:
        self._decoder = self._tower = self._draft = None
        self._drop_cells()

    def _tap(self, layer: int, h: Tensor) -> None:
        if self._draft is not None:
            self._draft.tap(layer, h)

    def _drop_cells(self) -> None:
        self._keys = self._values = torch.empty(0, 0, 0, 0)


class _SequenceView:
    """What one sequence's queries see of the cache during one step."""

    def __init__(self, sequence: SequenceStep, page_size: int, spec: ModelSpec) -> None:
        self.n_queries = len(sequence.tokens)
        end = sequence.start + self.n_queries
        positions = torch.arange(end)
        pages = torch.from_numpy(sequence.pages).to(torch.int64)
        self._cells = pages[positions // page_size] * page_size + positions % page_size
        distance = positions[sequence.start :, None] - positions
        self._masks = {
            window: (distance >= 0) & (distance < (window or end)) for window in set(spec.windows)
        }
        self._windows = spec.windows
        self._scale = spec.attention_scale

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, layer: int) -> Tensor:
        """Attention of q [n, H, D] over this sequence's cells of keys and values [cells, H_kv, D].

        A key is seen at distances 0 … window - 1 behind the query.
        """
        output = nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[self._cells].transpose(0, 1)[None],
            values[self._cells].transpose(0, 1)[None],
            attn_mask=self._masks[self._windows[layer]],
            scale=self._scale,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1)
