"""The block draft of the eager backend, with the cells of its context."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.models.decoder import Attend, Decoder
from astrai_cli.models.draft import BlockDraft, Taps
from backends.drafting import DraftStep


class EagerDraft:
    """A draft whose context's keys and values lie in the cells of the target's tokens."""

    def __init__(self, draft: BlockDraft) -> None:
        self.spec = draft.spec
        self._draft = draft
        self.tap = Taps(draft.spec.taps)
        self.allocate(0)

    @property
    def bytes_per_cell(self) -> int:
        return self.spec.layers.kv_values_per_token * torch.float32.itemsize

    def allocate(self, cells: int) -> None:
        layers = self.spec.layers
        shape = (layers.n_layers, cells, layers.n_kv_heads, layers.head_width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)

    def keep(self, positions: Tensor, cells: Tensor) -> None:
        """Give the tokens of the step whose layers were tapped their rows of the context."""
        for layer, (k, v) in enumerate(self._draft.context(self.tap.take(), positions)):
            self._keys[layer, cells] = k
            self._values[layer, cells] = v

    def propose(self, step: DraftStep, target: Decoder) -> NDArray[np.int32]:
        """int32 [owners, block - 1]."""
        proposing = self.hidden(step, target)[:, 1:]
        proposed = target.output(proposing.flatten(0, 1)).argmax(-1).to(torch.int32)
        rows: NDArray[np.int32] = proposed.view(len(step.owners), -1).numpy()
        return rows

    def hidden(self, step: DraftStep, target: Decoder) -> Tensor:
        """What the target's head takes: [owners, block, width]."""
        tokens = torch.full((len(step.owners), step.block), self.spec.mask_id)
        tokens[:, 0] = torch.tensor([owner.anchor for owner in step.owners])
        starts = torch.tensor([owner.start for owner in step.owners])
        positions = starts[:, None] + torch.arange(step.block)
        h: Tensor = self._draft(
            target.token_embd(tokens.flatten()), positions.flatten(), self._attend(step)
        )
        return h.view(*tokens.shape, -1)

    def _attend(self, step: DraftStep) -> Attend:
        """Each block's rows see its context and each other."""
        context = [torch.from_numpy(each.context_cells(step.page_size)) for each in step.owners]

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            blocks = (torch.split(x.squeeze(2), step.block) for x in (q, k, v))
            outputs = [
                nn.functional.scaled_dot_product_attention(
                    _by_head(queries),
                    _by_head(torch.cat([self._keys[layer, cells], keys])),
                    _by_head(torch.cat([self._values[layer, cells], values])),
                    scale=self.spec.layers.attention_scale,
                    enable_gqa=True,
                )
                for cells, queries, keys, values in zip(context, *blocks, strict=True)
            ]
            return torch.cat([output[0].transpose(0, 1) for output in outputs]).unsqueeze(2)

        return attend


def _by_head(rows: Tensor) -> Tensor:
    """[L, heads, D] as [1, heads, L, D]."""
    return rows.transpose(0, 1)[None]
