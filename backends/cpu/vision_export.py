"""A vision tower as `vision.pte`, read layer by layer.

Attention lies between the program's methods: whoever runs it holds all patches and
gives each method some rows at a time, so that the memory the program plans for does
not grow with images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from backends.cpu.arithmetic import VisionWeights
from backends.cpu.lowering import SegmentLowering, write_methods
from backends.cpu.modules import RowNorm
from backends.cpu.operators import rotate
from backends.cpu.vision import (
    PROGRAM_NAME,
    PROJECTOR,
    ROWS_AT_ONCE,
    encoder_method,
)


class _First(nn.Module):
    """Patches and positions become the residual stream, before the first attention."""

    def __init__(self, patches: nn.Linear, enter: nn.Module, block: VisionBlock) -> None:
        super().__init__()
        self.patches = patches
        self.enter = enter
        self.block = block

    def forward(self, patches: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        h = self.enter(self.patches(patches) + positions)
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

    def __init__(self, block: VisionBlock, leave: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.leave = leave

    def forward(self, attended: Tensor, h: Tensor) -> Tensor:
        normed: Tensor = self.leave(self.block.merge(h, attended))
        return normed


class _Projector(nn.Module):
    """From cells to rows of the text model's width."""

    def __init__(self, maps: Sequence[nn.Module], norm: nn.RMSNorm) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)
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
    """One export of a tower. Memory: its weights as `weights` makes them, and a layer's float32."""

    def __init__(self, source: VisionSource, weights: VisionWeights, progress: Progress) -> None:
        self._source = source
        self._spec = source.spec
        self._weights = weights
        self._progress = progress

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
        last = _Last(previous, self._weights.leave(self._norm("v.post_ln")))
        methods[encoder_method(spec.n_layers)] = (lowering.lower(last, stream), stream)
        cells = (spec.merge**2 * spec.width,)
        methods[PROJECTOR] = (lowering.lower(self._projector(), cells), cells)
        write_methods(folder / PROGRAM_NAME, methods, ROWS_AT_ONCE)
        write_positions(folder, self._source.get(POSITION_TABLE))

    def _blocks(self) -> Iterator[VisionBlock]:
        for layer in range(self._spec.n_layers):
            self._progress(
                f"converting layer {layer + 1} of {self._spec.n_layers} of the vision tower",
                0.9 + 0.1 * layer / self._spec.n_layers,
            )
            with torch.device("meta"):
                block = VisionBlock(self._spec)
            state = {name: self._tensor(f"v.blk.{layer}.{name}") for name in block.state_dict()}
            block.load_state_dict(state, assign=True)
            yield self._weights.block(block.requires_grad_(False))

    def _first(self, block: VisionBlock) -> _First:
        spec = self._spec
        patches = nn.Linear(CHANNELS * spec.patch_size**2, spec.width, bias=False)
        patches.weight.data = self._tensor(PATCH_EMBEDDING).flatten(1)
        enter = self._weights.enter(self._norm("v.pre_ln"))
        return _First(patches.requires_grad_(False), enter, block)

    def _projector(self) -> _Projector:
        spec = self._spec
        matrices = [self._tensor(f"mm.{i}.weight") for i in range(3)]
        maps = self._weights.projector(matrices, self._norm("v.post_ln"))
        return _Projector(maps, nn.RMSNorm(spec.text_width, spec.norm_eps).requires_grad_(False))

    def _norm(self, name: str) -> nn.LayerNorm:
        norm = nn.LayerNorm(self._spec.width, self._spec.norm_eps)
        norm.weight.data = self._tensor(f"{name}.weight")
        norm.bias.data = self._tensor(f"{name}.bias")
        return norm.requires_grad_(False)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.require(self._source.get(name), requirements="W"))
