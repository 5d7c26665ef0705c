"""Steps on the device: those of prepared sizes, captured as CUDA graphs, and all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astrai_cli.models.decoder import Decoder, Tap, ignore_outputs
from backends.cuda import kernels
from backends.cuda.attention import CellPool
from backends.cuda.draft import CudaDraft
from backends.cuda.graphs import Prepared, can_capture, capture_all
from backends.cuda.inputs import Group, Layout, StepTensors, put_drawn, upload


class StaticForward:
    """`forward_{size}`: one token of each of `size` sequences.

    prepared: what runs, to be captured where that can be.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: CellPool,
        size: int,
        buffer: Tensor,
        draft: CudaDraft | None = None,
    ) -> None:
        """buffer: int32, as long as `StepTensors.most_integers` says; other sizes may share it.

        draft: gets its rows of the context in every step.
        """
        self.size = size
        self._decoder = decoder
        self._pool = pool
        self._draft = draft
        self._rows = torch.arange(size, device=buffer.device)
        self.prepared = Prepared(self._run, buffer)

    def __call__(self, layout: Layout, drawn: Tensor | None = None) -> tuple[Tensor, StepTensors]:
        """Logits [size, vocabulary], valid until the next step, of a layout of `size` rows.

        drawn: what the step before drew, where the layout follows it.
        """
        inputs = self.prepared.load(layout)
        if drawn is not None and layout.follows:
            put_drawn(inputs.tokens, drawn)
        return self.prepared.run(inputs, layout.groups), inputs

    def _run(self, inputs: StepTensors, groups: Sequence[Group]) -> Tensor:
        attend = self._pool.attend_by(inputs, groups)
        h = self._decoder.embed(inputs.tokens)
        logits: Tensor = self._decoder(
            h, inputs.positions, self._rows, attend, _tap_of(self._draft)
        )
        _keep(self._draft, inputs)
        return logits


def _tap_of(draft: CudaDraft | None) -> Tap:
    return ignore_outputs if draft is None else draft.tap


def _keep(draft: CudaDraft | None, inputs: StepTensors) -> None:
    """Give the draft its rows of the context."""
    if draft is not None:
        draft.keep(inputs.positions, inputs.cells)


def run_others(
    decoder: Decoder,
    pool: CellPool,
    layout: Layout,
    embeddings: NDArray[np.float32],
    *,
    draft: CudaDraft | None = None,
    drawn: Tensor | None = None,
) -> Tensor:
    """`forward_others`: logits [R, vocabulary] of the rows wanted, of any step."""
    device = pool.keys[0].device
    inputs = StepTensors.of(upload(layout.integers(), device), layout)
    if drawn is not None and layout.follows:
        put_drawn(inputs.tokens, drawn)
    h = decoder.embed(inputs.tokens)
    if len(embeddings):
        h[inputs.embedded] = upload(embeddings, device).to(h)
    attend = pool.attend_by(inputs, layout.groups)
    logits: Tensor = decoder(h, inputs.positions, inputs.wanted, attend, _tap_of(draft))
    _keep(draft, inputs)
    return logits


def prepare_static(
    decoder: Decoder,
    pool: CellPool,
    sizes: Sequence[int],
    max_context: int,
    draft: CudaDraft | None = None,
) -> list[StaticForward]:
    """The prepared sizes, ascending; captured where the device runs kernels on a GPU.

    There the other steps are compiled too, so that no request waits for that.
    """
    device = pool.keys[0].device
    most = StepTensors.most_integers(max(sizes, default=0), max_context)
    buffer = torch.zeros(most, dtype=torch.int32, device=device)
    forwards = [StaticForward(decoder, pool, size, buffer, draft) for size in sizes]
    if can_capture(device):
        warm_up(decoder, pool)
        idle = Layout.idle(pool.padding)
        capture_all(
            (each.prepared, idle.padded(each.size, pool.padding)) for each in reversed(forwards)
        )
    return forwards


def warm_up(decoder: Decoder, pool: CellPool) -> None:
    """Run prompts of more rows than products with packed integers take; no cell changes.

    One leaves most of a GPU idle and one fills it, for which attention is compiled apart.
    """
    tile = kernels.tile_rows(pool.spec)
    nothing = np.zeros((0, pool.spec.width), dtype=np.float32)
    for n_rows in (2 * kernels.MOST_ROWS, kernels.FULL_PROGRAMS * tile):
        run_others(decoder, pool, Layout.idle(pool.padding, n_rows, tile), nothing)
