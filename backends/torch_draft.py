"""The block draft in PyTorch, with the cells of its context, on any device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.models.decoder import Attend, Decoder
from astrai_cli.models.draft import BlockDraft
from backends.drafting import DraftStep


class TorchDraft:
    """A draft whose context's keys and values lie in the cells of the target's tokens."""

    def __init__(self, draft: BlockDraft) -> None:
        """draft: on its device, in the number type of its keys and values too."""
        self.spec = draft.spec
        self._draft = draft
        self._dtype = draft.fc.weight.dtype
        self._device = draft.fc.weight.device
        self._taps: dict[int, Tensor] = {}
        self.allocate(0)

    @property
    def bytes_per_cell(self) -> int:
        return self.spec.layers.kv_values_per_token * self._dtype.itemsize

    def allocate(self, cells: int) -> None:
        layers = self.spec.layers
        shape = (layers.n_layers, cells, layers.n_kv_heads, layers.head_width)
        self._keys, self._values = (
            torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(2)
        )

    def tap(self, layer: int, h: Tensor) -> None:
        """Take a layer's output, where the draft reads it."""
        if layer in self.spec.taps:
            self._taps[layer] = h

    def keep(self, positions: Tensor, cells: Tensor) -> None:
        """Give the tokens of the step whose layers were tapped their rows of the context."""
        taps = torch.cat([self._taps[layer] for layer in self.spec.taps], dim=1)
        self._taps.clear()
        for layer, (k, v) in enumerate(self._draft.context(taps, positions)):
            self._keys[layer, cells] = k.to(self._dtype)
            self._values[layer, cells] = v

    def propose(self, step: DraftStep, target: Decoder) -> NDArray[np.int32]:
        """int32 [owners, block - 1]."""
        proposing = self.hidden(step, target)[:, 1:]
        proposed = target.output(proposing.flatten(0, 1)).argmax(-1).to(torch.int32)
        rows: NDArray[np.int32] = proposed.view(len(step.owners), -1).cpu().numpy()
        return rows

    def hidden(self, step: DraftStep, target: Decoder) -> Tensor:
        """What the target's head takes: [owners, block, width]."""
        tokens = torch.full((len(step.owners), step.block), self.spec.mask_id)
        tokens[:, 0] = torch.tensor([owner.anchor for owner in step.owners])
        starts = torch.tensor([owner.start for owner in step.owners])
        positions = starts[:, None] + torch.arange(step.block)
        h: Tensor = self._draft(
            target.token_embd(tokens.flatten().to(self._device)),
            positions.flatten().to(self._device),
            self._attend(step),
        )
        return h.view(*tokens.shape, -1)

    def _attend(self, step: DraftStep) -> Attend:
        """Each block's rows see its context and each other."""
        context = [
            torch.from_numpy(owner.context_cells(step.page_size)).to(self._device)
            for owner in step.owners
        ]

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            blocks = (torch.split(x.squeeze(2).to(self._dtype), step.block) for x in (q, k, v))
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
