"""The block draft of the cuda backend: blocks of a few answers as CUDA graphs, and all others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.draft import BlockDraft, Taps
from backends.cuda import kernels
from backends.cuda.attention import CellPool
from backends.cuda.graphs import Prepared, can_capture, capture_all
from backends.cuda.inputs import Group, Layout, StepTensors, cut_in_tiles, upload
from backends.drafting import DraftOwner, DraftStep

# Counts of owners that drafts are prepared for.
PREPARED_OWNERS = (1, 2, 4)


class CudaDraft:
    """A draft whose context's keys and values lie in the cells of the target's tokens.

    Behind them are cells for blocks, each of which is written anew with every draft.
    tap: takes the outputs of the target's layers in a step.
    """

    def __init__(
        self, draft: BlockDraft, target: Decoder, *, n_tokens: int, max_owners: int
    ) -> None:
        """draft: on the target's device, in the number type of its keys and values too.

        n_tokens: of the proposals to prepare for; 0 or more than there can be: the most.
        max_owners: of a draft.
        """
        self.spec = draft.spec
        self.tap = Taps(draft.spec.taps)
        self._pool: CellPool | None = None
        self._draft = draft
        self._target = target
        self._dtype = draft.fc.weight.dtype
        self._device = draft.fc.weight.device
        self._block = 1 + min(n_tokens or self.spec.max_tokens, self.spec.max_tokens)
        self._max_owners = max_owners
        self._prepared: dict[int, Prepared] = {}
        self._first_block = 0

    @property
    def bytes_per_cell(self) -> int:
        return self.spec.layers.kv_values_per_token * self._dtype.itemsize

    def allocate(self, cells: int, max_context: int) -> None:
        """Make room beside that many cells and one of padding, and prepare drafts."""
        self.drop_cells()
        most_blocks = max(self._max_owners, *PREPARED_OWNERS)
        reserved = most_blocks * self.spec.max_block
        self._pool = CellPool(self.spec.layers, cells + reserved, self._dtype, self._device)
        self._first_block = cells + 1
        longest = self._idle(PREPARED_OWNERS[-1], start=max_context - 1)
        buffer = torch.zeros(len(longest.integers()), dtype=torch.int32, device=self._device)
        run = partial(self._propose, self._block)
        self._prepared = {n: Prepared(run, buffer) for n in PREPARED_OWNERS}
        if can_capture(self._device):
            self._warm_up()

    def drop_cells(self) -> None:
        self._prepared = {}
        self._pool = None

    @property
    def pool(self) -> CellPool:
        """The cells that were allocated."""
        assert self._pool is not None
        return self._pool

    def keep(self, positions: Tensor, cells: Tensor) -> None:
        """Give the tokens of the step whose layers were tapped their rows of the context."""
        for layer, (k, v) in enumerate(self._draft.context(self.tap.take(), positions)):
            self.pool.keys[layer][cells] = k.to(self._dtype)
            self.pool.values[layer][cells] = v

    def propose(self, step: DraftStep) -> NDArray[np.int32]:
        """int32 [owners, block - 1]. The host waits for these, and for nothing else."""
        n_owners = len(step.owners)
        size = next((n for n in self._prepared if n >= n_owners), None)
        if size is None or step.block != self._block:
            layout = self._layout(step, n_owners)
            proposed = self._propose(step.block, self._upload(layout), layout.groups)
        else:
            layout, prepared = self._layout(step, size), self._prepared[size]
            proposed = prepared.run(prepared.load(layout), layout.groups)
        rows: NDArray[np.int32] = proposed[:n_owners].cpu().numpy()
        return rows

    def hidden(self, step: DraftStep, *, gather: bool = False) -> Tensor:
        """What the target's head takes: [owners, block, width]. gather: without kernels."""
        layout = self._layout(step, len(step.owners))
        return self._hidden(step.block, self._upload(layout), layout.groups, gather=gather)

    def _propose(self, block: int, inputs: StepTensors, groups: Sequence[Group]) -> Tensor:
        proposing = self._hidden(block, inputs, groups)[:, 1:]
        logits: Tensor = self._target.output(proposing.flatten(0, 1))
        return logits.argmax(-1).to(torch.int32).view(-1, block - 1)

    def _hidden(
        self, block: int, inputs: StepTensors, groups: Sequence[Group], *, gather: bool = False
    ) -> Tensor:
        before_last = torch.arange(block - 1, -1, -1, device=self._device)
        positions = inputs.positions.view(-1, block) - before_last
        h: Tensor = self._draft(
            self._target.token_embd(inputs.tokens),
            positions.flatten(),
            self.pool.attend_by(inputs, groups, gather=gather),
        )
        return h.view(*positions.shape, -1)

    def _layout(self, step: DraftStep, n_blocks: int) -> Layout:
        return lay_out_blocks(
            step,
            n_blocks,
            mask_id=self.spec.mask_id,
            first_cell=self._first_block,
            tile_rows=kernels.tile_rows(self.spec.layers),
        )

    def _idle(self, n_owners: int, start: int = 1) -> Layout:
        """Blocks that nobody asked for."""
        owner = DraftOwner(0, start, np.zeros(start, dtype=np.int32))
        return self._layout(DraftStep([owner] * n_owners, self._block, page_size=1), n_owners)

    def _upload(self, layout: Layout) -> StepTensors:
        return StepTensors.of(upload(layout.integers(), self._device), layout)

    def _warm_up(self) -> None:
        """Compile what the most owners need, and capture what is prepared."""
        most = self._idle(self._max_owners)
        self._propose(self._block, self._upload(most), most.groups)
        capture_all((self._prepared[n], self._idle(n)) for n in reversed(PREPARED_OWNERS))


def lay_out_blocks(
    step: DraftStep, n_blocks: int, *, mask_id: int, first_cell: int, tile_rows: int
) -> Layout:
    """The blocks of a draft; behind those of its owners, ones without context for padding.

    Each row's position is that of the last of its block, so that attention over what lies
    before a row shows it the whole block. Pages are single cells, as a block begins in the
    midst of a page of its context and has its own keys and values from `first_cell` on.
    tile_rows: as in `Layout`.
    """
    n_owners, block = len(step.owners), step.block
    tokens = np.full((n_blocks, block), mask_id)
    tokens[:n_owners, 0] = [owner.anchor for owner in step.owners]
    ends = np.full(n_blocks, block)
    ends[:n_owners] += [owner.start for owner in step.owners]
    own = first_cell + np.arange(n_blocks * block).reshape(n_blocks, block)
    context = [owner.context_cells(step.page_size) for owner in step.owners]
    seen = [cells for both in zip(context, own[:n_owners], strict=True) for cells in both]
    by_block = ends - 1, np.cumsum(ends) - ends
    positions, first_pages = (np.repeat(each, block) for each in by_block)
    nothing = np.zeros(0, dtype=np.int32)
    return Layout(
        rows=np.stack([tokens.ravel(), positions, own.ravel(), first_pages]).astype(np.int32),
        tiles=cut_in_tiles(np.full(n_blocks, block), tile_rows),
        pages=np.concatenate([*seen, own[n_owners:].ravel()]).astype(np.int32),
        page_size=1,
        wanted=nothing,
        embedded=nothing,
        groups=(Group(0, n_blocks, block, int(ends.max())),),
    )
