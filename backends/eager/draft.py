"""The block draft of the float32 reference, with the cells of its context."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.draft import BlockDraft
from backends.drafting import DraftOwner, DraftStep


class EagerDraft:
    """A draft whose context's keys and values lie in the cells of the target's tokens."""

    def __init__(self, draft: BlockDraft) -> None:
        self.spec = draft.spec
        self._draft = draft
        self._taps: dict[int, Tensor] = {}
        self.allocate(0)

    @property
    def bytes_per_cell(self) -> int:
        return self.spec.layers.kv_values_per_token * torch.float32.itemsize

    def allocate(self, cells: int) -> None:
        layers = self.spec.layers
        shape = (layers.n_layers, cells, layers.n_kv_heads, layers.head_width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)

    def tap(self, layer: int, h: Tensor) -> None:
        """Take a layer's output, where the draft reads it."""
        if layer in self.spec.taps:
            self._taps[layer] = h

    def keep(self, positions: Tensor, cells: Tensor) -> None:
        """Give the tokens of the step whose layers were tapped their rows of the context."""
        taps = torch.cat([self._taps[layer] for layer in self.spec.taps], dim=1)
        self._taps.clear()
        for layer, (k, v) in enumerate(self._draft.context(taps, positions)):
            self._keys[layer, cells], self._values[layer, cells] = k, v

    def propose(self, step: DraftStep, target: Decoder) -> NDArray[np.int32]:
        """int32 [owners, block - 1]."""
        return np.stack([self._propose(owner, step, target) for owner in step.owners])

    def _propose(self, owner: DraftOwner, step: DraftStep, target: Decoder) -> NDArray[np.int32]:
        cells = torch.from_numpy(owner.context_cells(step.page_size))

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            keys = torch.cat([self._keys[layer, cells], k.squeeze(2)])
            values = torch.cat([self._values[layer, cells], v.squeeze(2)])
            output = nn.functional.scaled_dot_product_attention(
                q.squeeze(2).transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                scale=self.spec.layers.attention_scale,
                enable_gqa=True,
            )
            return output[0].transpose(0, 1).unsqueeze(2)

        tokens = torch.full((step.block,), self.spec.mask_id)
        tokens[0] = owner.anchor
        positions = torch.arange(owner.start, owner.start + step.block)
        h = self._draft(target.token_embd(tokens), positions, attend)
        proposed: NDArray[np.int32] = target.output(h[1:]).argmax(-1).to(torch.int32).numpy()
        return proposed
