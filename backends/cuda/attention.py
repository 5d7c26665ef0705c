"""Keys and values in cells on the device, and attention over those that a step sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Attend
from astrai_cli.models.spec import ModelSpec
from backends.cuda import kernels
from backends.cuda.inputs import Group, StepTensors


class CellPool:
    """The cells of all layers: for each layer keys and values, [cells + 1, H_kv, D].

    padding: the last cell, which takes what is written for rows that pad a step.
    """

    def __init__(
        self, spec: ModelSpec, n_cells: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (n_cells + 1, spec.n_kv_heads, spec.head_width)
        self.spec = spec
        self.n_cells = n_cells
        self.padding = n_cells
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in spec.windows]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in spec.windows]

    def attend_by(
        self, inputs: StepTensors, groups: Sequence[Group], *, gather: bool = False
    ) -> Attend:
        """What writes a step's keys and values, and attends.

        groups: used where there are no kernels, or on `gather`.
        """
        if kernels.available(inputs.tokens.device) and not gather:
            return self._attend_by_kernel(inputs)
        return self._attend_by_gathering(inputs, groups)

    def _write(self, layer: int, cells: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        keys[cells] = k.squeeze(2).to(keys.dtype)
        values[cells] = v.squeeze(2).to(values.dtype)
        return keys, values

    def _attend_by_kernel(self, inputs: StepTensors) -> Attend:
        spec = self.spec

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            keys, values = self._write(layer, inputs.cells, k, v)
            queries = q.squeeze(2).to(keys.dtype)
            scale, window = spec.attention_scale, spec.windows[layer]
            output = kernels.attend(queries, keys, values, inputs, scale=scale, window=window)
            return output.unsqueeze(2)

        return attend

    def _attend_by_gathering(self, inputs: StepTensors, groups: Sequence[Group]) -> Attend:
        spec = self.spec
        sights = {
            window: [_Sight.of(inputs, group, window) for group in groups]
            for window in set(spec.windows)
        }

        def attend(q: Tensor, k: Tensor, v: Tensor, _positions: Tensor, layer: int) -> Tensor:
            keys, values = self._write(layer, inputs.cells, k, v)
            queries = q.squeeze(2).to(keys.dtype)
            outputs = [
                sight.attend(queries[group.begin : group.end], keys, values, spec.attention_scale)
                for group, sight in zip(groups, sights[spec.windows[layer]], strict=True)
            ]
            return torch.cat(outputs).unsqueeze(2)

        return attend


@dataclass(frozen=True, slots=True)
class _Sight:
    """The cells that a group's sequences see in a layer: [B, L]. mask: bool [B, 1, count, L]."""

    cells: Tensor
    mask: Tensor

    @classmethod
    def of(cls, inputs: StepTensors, group: Group, window: int | None) -> _Sight:
        """The last of the L positions is each sequence's newest.

        Those before its first have a cell of no meaning, and are masked.
        """
        rows = slice(group.begin, group.end)
        queries = inputs.positions[rows].view(group.n_sequences, group.count)
        length = min(group.longest, group.count + window - 1) if window else group.longest
        behind = torch.arange(length - 1, -1, -1, device=queries.device)
        positions = queries[:, -1:] - behind
        is_there = positions >= 0
        positions = positions.clamp(min=0)
        first_page = inputs.first_pages[rows].view(group.n_sequences, group.count)[:, :1]
        page = inputs.pages[first_page + positions // inputs.page_size]
        distance = queries[:, :, None] - positions[:, None]
        mask = (distance >= 0) & is_there[:, None]
        if window:
            mask &= distance < window
        cells = page * inputs.page_size + positions % inputs.page_size
        return cls(cells, mask[:, None])

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attention of the group's queries [B * count, H, D]."""
        n_sequences, _, count, _ = self.mask.shape
        queries = q.view(n_sequences, count, *q.shape[1:]).transpose(1, 2)
        output = nn.functional.scaled_dot_product_attention(
            queries,
            keys[self.cells].transpose(1, 2),
            values[self.cells].transpose(1, 2),
            attn_mask=self.mask,
            scale=scale,
            enable_gqa=True,
        )
        return output.transpose(1, 2).reshape(q.shape)
