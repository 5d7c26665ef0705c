"""A vision tower as `vision.pte`, read and rounded layer by layer.

Attention lies between the program's methods: whoever runs it holds all patches and
gives each method some rows at a time, so that the memory the program plans for does
not grow with images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import split_heads
from astrai_cli.models.source import VisionSource
from astrai_cli.models.vision import VisionBlock
from astrai_cli.models.vision_spec import CHANNELS, PATCH_EMBEDDING, POSITION_TABLE
from backends.artifact_vision import write_positions
from backends.base import Progress
from backends.cpu.lowering import SegmentLowering, write_methods
from backends.cpu.operators import rotate
from backends.cpu.quantized import Int8Linear, PreciseLinear, RoundRows, RowNorm
from backends.cpu.rotation import ResidualRotation
from backends.cpu.rounding import round_to_int8
from backends.cpu.vision import (
    PROGRAM_NAME,
    PROJECTOR,
    ROWS_AT_ONCE,
    encoder_method,
)
from backends.cpu.vision_rotation import (
    cells_from_stream,
    plain_norm,
    rotate_vision_block,
    stream_map,
)


class _First(nn.Module):
    """Patches and positions become the residual stream, before the first attention."""

    mean: Tensor

    def __init__(
        self, patches: nn.Linear, norm: nn.RMSNorm, stream: nn.Linear, block: VisionBlock
    ) -> None:
        super().__init__()
        width = stream.in_features
        self.patches = patches
        self.register_buffer("mean", torch.full((1, width), 1 / width))
        self.norm = RowNorm(norm)
        self.stream = stream
        self.block = block

    def forward(self, patches: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        h = self.patches(patches) + positions
        h = self.stream(self.norm(h - nn.functional.linear(h, self.mean)))
        return *self.block.project(h), h


class _Middle(nn.Module):
    """Between the attention of two layers."""

    def __init__(self, block: VisionBlock, following: VisionBlock) -> None:
        super().__init__()
        self.block = block
        self.following = following

    def forward(self, attended: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        h = self.block.merge(h, attended)
        return *self.following.project(h), h


class _Last(nn.Module):
    """After the last attention, up to the norm."""

    def __init__(self, block: VisionBlock, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.block = block
        self.norm = RowNorm(norm)

    def forward(self, attended: Tensor, h: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.block.merge(h, attended))
        return normed


class _Projector(nn.Module):
    """From cells to rows of the text model's width.

    Its maps are few, and cost as much precision as all others together when they are rounded.
    """

    def __init__(self, maps: nn.ModuleList, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.maps = maps
        self.norm = RowNorm(norm)

    def forward(self, cells: Tensor) -> Tensor:
        first, second, last = self.maps
        h = last(nn.functional.gelu(second(nn.functional.gelu(first(cells)))))
        normed: Tensor = self.norm(h)
        return normed


class _Turned(nn.Module):
    """A lowered segment whose queries and keys turn before they leave."""

    def __init__(self, segment: nn.Module, head_width: int) -> None:
        super().__init__()
        self.segment = segment
        self._head_width = head_width

    def forward(self, x: Tensor, y: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
        q, k, v, h = self.segment(x, y)
        cos, sin = angles.cos(), angles.sin()
        q, k = (rotate(split_heads(x, self._head_width), cos, sin) for x in (q, k))
        return q, k, v, h


class VisionExporter:
    """One export of a tower. Memory: the int8 weights and a layer's float32 weights."""

    def __init__(
        self, source: VisionSource, text_rows: Callable[[Tensor], Tensor], progress: Progress
    ) -> None:
        """text_rows: what the text model's export does to rows [n, text width] of its stream."""
        self._source = source
        self._spec = source.spec
        self._text_rows = text_rows
        self._progress = progress
        self._residual = ResidualRotation(source.spec.width)

    def write(self, folder: Path) -> None:
        """Write the program and the table of positions. Raises ModelFileError, ExecutionError."""
        spec = self._spec
        lowering = SegmentLowering(ROWS_AT_ONCE)
        half = spec.head_width // 2
        stream = (spec.width, spec.width)
        methods: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}

        def add(layer: int, segment: nn.Module, inputs: tuple[int, int]) -> None:
            turned = _Turned(lowering.lower(segment, inputs), spec.head_width)
            methods[encoder_method(layer)] = (turned, (*inputs, half))

        previous: VisionBlock | None = None
        for layer, block in enumerate(self._blocks()):
            if previous is None:
                first = self._first(block)
                add(layer, first, (first.patches.in_features, spec.width))
            else:
                add(layer, _Middle(previous, block), stream)
            previous = block
        assert previous is not None
        last = _Last(previous, plain_norm(self._norm("v.post_ln")))
        methods[encoder_method(spec.n_layers)] = (lowering.lower(last, stream), stream)
        cells = (spec.merge**2 * spec.width,)
        methods[PROJECTOR] = (lowering.lower(self._projector(), cells), cells)
        write_methods(folder / PROGRAM_NAME, methods, ROWS_AT_ONCE)
        write_positions(folder, self._source.get(POSITION_TABLE))

    def _blocks(self) -> Iterator[VisionBlock]:
        for layer in range(self._spec.n_layers):
            self._progress(
                f"rounding layer {layer + 1} of {self._spec.n_layers} of the vision tower",
                0.9 + 0.1 * layer / self._spec.n_layers,
            )
            with torch.device("meta"):
                block = VisionBlock(self._spec)
            state = {name: self._tensor(f"v.blk.{layer}.{name}") for name in block.state_dict()}
            block.load_state_dict(state, assign=True)
            block.requires_grad_(False)
            rotate_vision_block(block, self._residual)
            yield _quantize_block(block)

    def _first(self, block: VisionBlock) -> _First:
        spec = self._spec
        patches = nn.Linear(CHANNELS * spec.patch_size**2, spec.width, bias=False)
        patches.weight.data = self._tensor(PATCH_EMBEDDING).flatten(1)
        norm = self._norm("v.pre_ln")
        stream = stream_map(norm, self._residual)
        return _First(patches.requires_grad_(False), plain_norm(norm), stream, block)

    def _projector(self) -> _Projector:
        spec = self._spec
        norm = self._norm("v.post_ln")
        first = cells_from_stream(self._tensor("mm.0.weight"), norm, self._residual)
        # The norm behind the last map has no weight, so a rotation may come before it.
        last = self._text_rows(self._tensor("mm.2.weight").T).T.contiguous()
        maps = nn.ModuleList(
            [
                PreciseLinear(first.weight, first.bias.detach()),
                PreciseLinear(self._tensor("mm.1.weight")),
                PreciseLinear(last),
            ]
        )
        return _Projector(maps, nn.RMSNorm(spec.text_width, spec.norm_eps).requires_grad_(False))

    def _norm(self, name: str) -> nn.LayerNorm:
        norm = nn.LayerNorm(self._spec.width, self._spec.norm_eps)
        norm.weight.data = self._tensor(f"{name}.weight")
        norm.bias.data = self._tensor(f"{name}.bias")
        return norm.requires_grad_(False)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.require(self._source.get(name), requirements="W"))


_SHARE_AN_INPUT = frozenset({"attn_q", "attn_k", "attn_v", "ffn_up"})


def _quantize_block(block: VisionBlock) -> VisionBlock:
    """Put rounded maps and norms in the place of a rotated block's own."""
    for name, linear in list(block.named_modules()):
        if isinstance(linear, nn.Linear):
            bias = linear.bias.detach().clone()
            rounded = Int8Linear(round_to_int8(linear.weight, None), bias)
            alone = nn.Sequential(RoundRows(), rounded)
            block.set_submodule(name, rounded if name in _SHARE_AN_INPUT else alone)
    for name in ("ln1", "ln2"):
        norm = block.get_submodule(name)
        assert isinstance(norm, nn.RMSNorm)
        # Maps that share an input share its rounding.
        block.set_submodule(name, nn.Sequential(RowNorm(norm), RoundRows()))
    return block
