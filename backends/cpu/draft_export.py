"""A block draft as one `.pte`: a method for the context's rows and one for blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.config import ExportConfig
from astrai_cli.models.decoder import Block, split_heads
from astrai_cli.models.draft import BlockDraft, load_draft
from astrai_cli.models.draft_spec import DraftFile, DraftSpec
from astrai_cli.models.weights import TensorSource
from backends.base import Progress
from backends.cpu.arithmetic import DraftWeights
from backends.cpu.draft import PROGRAM_NAME
from backends.cpu.lowering import (
    Program,
    SegmentLowering,
    export_rows,
    export_step,
    write_exported,
)
from backends.cpu.operators import rotate
from backends.cpu.segments import FirstSegment, LastSegment, MiddleSegment

ROWS_AT_ONCE = 8192


class _ContextMaps(nn.Module):
    """From taps [T, taps * width] to each layer's keys, not yet rotated, and values."""

    def __init__(self, draft: BlockDraft) -> None:
        super().__init__()
        self.fc = draft.fc
        self.norm = draft.enc.output_norm
        self.blk = draft.blk

    def forward(self, taps: Tensor) -> tuple[Tensor, ...]:
        row = self.norm(self.fc(taps))
        return tuple(x for block in self.blk for x in _project(block, row))


def _project(block: nn.Module, row: Tensor) -> tuple[Tensor, Tensor]:
    assert isinstance(block, Block)
    return block.project_context(row)


class _Context(nn.Module):
    """The whole method: keys [T, H_kv, 1, D] rotated at their positions, and values."""

    frequencies: Tensor

    def __init__(self, spec: DraftSpec, maps: nn.Module, frequencies: Tensor) -> None:
        super().__init__()
        self._head_width = spec.layers.head_width
        self.maps = maps
        self.register_buffer("frequencies", frequencies)

    def forward(self, taps: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        angles = positions.to(torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        rows = [split_heads(x, self._head_width) for x in self.maps(taps)]
        keys = [rotate(k, cos, sin) for k in rows[0::2]]
        return tuple(x for pair in zip(keys, rows[1::2], strict=True) for x in pair)


class DraftExporter:
    """One export of a draft, with the embedding and the head of its target."""

    def __init__(
        self,
        file: DraftFile,
        target: TensorSource,
        weights: DraftWeights,
        options: ExportConfig,
        progress: Progress,
    ) -> None:
        self._spec = file.spec
        self._draft = load_draft(file)
        self._target = target
        self._weights = weights
        # The context has the rows of a step, and blocks those of their owners.
        blocks = options.max_draft_owners * file.spec.max_block
        self._max_rows = max(options.max_prefill_chunk, blocks)
        self._progress = progress

    def write(self, folder: Path) -> None:
        """Write the program. Raises ModelFileError, ExecutionError."""
        self._progress("converting the draft", 0.92)
        self._weights.put_into(self._draft)
        lowering = SegmentLowering(self._max_rows)
        layers = self._spec.layers
        frequencies = self._draft.rope_frequencies
        taps = len(self._spec.taps) * layers.width
        maps = lowering.lower(_ContextMaps(self._draft), (taps,))
        inputs = (layers.n_heads * layers.head_width, layers.width)
        first, *others = (block for block in self._draft.blk if isinstance(block, Block))
        segments: list[nn.Module] = [lowering.lower(FirstSegment(first), (layers.width,))]
        previous = first
        for block in others:
            segments.append(lowering.lower(MiddleSegment(previous, block), inputs))
            previous = block
        segments.append(lowering.lower(LastSegment(previous, self._head()), inputs))
        embedding = self._weights.embedding(self._rows_of("token_embd.weight"))
        program = Program(layers, embedding, frequencies, segments)
        context = _Context(self._spec, maps, frequencies)
        methods = {
            "forward": export_step(program, self._max_rows),
            "context": export_rows(context, taps, self._max_rows),
        }
        write_exported(folder / PROGRAM_NAME, methods)

    def _head(self) -> nn.Module:
        tied = self._target.spec.tied_head
        matrix = self._rows_of("token_embd.weight" if tied else "output.weight")
        return nn.Sequential(self._draft.output_norm, self._weights.head(matrix))

    def _rows_of(self, name: str) -> Iterator[Tensor]:
        n = self._spec.layers.vocab_size
        for begin in range(0, n, ROWS_AT_ONCE):
            rows = np.arange(begin, min(begin + ROWS_AT_ONCE, n))
            yield torch.from_numpy(self._target.get_rows(name, rows))
