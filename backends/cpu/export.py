"""A model file as one `.pte` with int8 weights, read and rounded layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.config import ExportConfig
from astrai_cli.errors import ModelFileError
from astrai_cli.models.decoder import Block, norm_embeddings
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.rope import rope_frequencies
from astrai_cli.models.source import ModelSource, open_source, open_vision
from astrai_cli.models.spec import MUSE_GLIMMER, ModelSpec
from backends.base import Progress
from backends.cpu.calibration import Calibration, calibration_tokens
from backends.cpu.draft import BLOCK, CONTEXT
from backends.cpu.draft_export import DraftExporter
from backends.cpu.lowering import Program, SegmentLowering, export_step, write_exported
from backends.cpu.quantized import (
    PRECISE_LEVELS,
    QuantizedHead,
    quantize_block,
    round_embedding,
)
from backends.cpu.rotation import (
    BlockHadamard,
    ResidualRotation,
    hadamard,
    rotate_block,
    runtime_block,
    turn_block,
)
from backends.cpu.rounding import INT8_MAX, Int8Matrix, round_to_int8
from backends.cpu.segments import FirstSegment, LastSegment, MiddleSegment
from backends.cpu.vision import ENCODER, PROJECTOR
from backends.cpu.vision_export import VisionExporter

PROGRAM_NAME = "model.pte"
ROWS_AT_ONCE = 8192


class Exporter:
    """One export. Memory: the int8 weights, the float32 weights of a layer, the calibration.

    taps: layers whose outputs the program gives besides the logits, side by side.
    """

    def __init__(
        self,
        source: ModelSource,
        options: ExportConfig,
        progress: Progress,
        taps: Sequence[int] = (),
    ) -> None:
        self._taps = tuple(taps)
        self._spec: ModelSpec = source.spec
        self._weights = source.weights
        self._max_rows = options.max_prefill_chunk
        self._progress = progress
        self._rotation = _stream_rotation(self._spec)
        self._frequencies = torch.from_numpy(rope_frequencies(self._spec.rope))
        tokens = calibration_tokens(source.tokenizer(), self._spec)
        rows = self._weights.get_rows("token_embd.weight", tokens.reshape(-1))
        h = self._stream(torch.from_numpy(rows)).view(*tokens.shape, self._spec.width)
        self._calibration = Calibration(h, self._spec, self._frequencies)

    def write(self, path: Path) -> None:
        """Write the program. Raises ModelFileError, ExecutionError."""
        lowering = SegmentLowering(self._max_rows)
        q_width = self._spec.n_heads * self._spec.head_width
        gate = (q_width,) if self._spec.gated_attention else ()
        inputs = (q_width, self._spec.width, *gate)
        segments = []
        previous: Block | None = None
        for block in self._blocks():
            if previous is None:
                segments.append(lowering.lower(FirstSegment(block), (self._spec.width,)))
            else:
                segments.append(lowering.lower(MiddleSegment(previous, block), inputs))
            previous = block
        assert previous is not None
        self._progress("rounding the head", 0.85)
        segments.append(lowering.lower(LastSegment(previous, self._head()), inputs))
        self._progress("writing the program", 0.9)
        program = Program(self._spec, self._embedding(), self._frequencies, segments, self._taps)
        write_exported(path, {"forward": export_step(program, self._max_rows)})

    def _blocks(self) -> Iterator[Block]:
        for layer in range(self._spec.n_layers):
            self._progress(
                f"rounding layer {layer + 1} of {self._spec.n_layers}",
                0.8 * layer / self._spec.n_layers,
            )
            block = self._load_block(layer)
            if self._rotation is None:
                turn_block(block)
            else:
                rotate_block(block, self._rotation)
            yield quantize_block(block, self._calibration.run(block))

    def _load_block(self, layer: int) -> Block:
        with torch.device("meta"):
            block = Block(self._spec, layer)
        state = {name: self._tensor(f"blk.{layer}.{name}") for name in block.state_dict()}
        block.load_state_dict(state, assign=True)
        return block.requires_grad_(False).eval()

    def _head(self) -> QuantizedHead:
        norm = nn.Sequential(
            nn.RMSNorm(self._spec.width, self._spec.norm_eps).requires_grad_(False)
        )
        turn: Callable[[Tensor], Tensor] = nn.Identity()
        if self._rotation is not None:
            turn = self._rotation.of_rows
        elif (block := runtime_block(self._spec.width)) is not None:
            turn = partial(hadamard, block=block)
            norm.append(BlockHadamard(block))
        gains = self._tensor("output_norm.weight")
        gains *= self._spec.logit_scale / (self._spec.logit_cap or 1.0)
        moments = self._calibration.run_head(norm).moments
        name = "token_embd.weight" if self._spec.tied_head else "output.weight"
        parts = [round_to_int8(turn(rows * gains), moments) for rows in self._rows_of(name)]
        matrix = Int8Matrix(
            torch.cat([part.values for part in parts]), torch.cat([part.scales for part in parts])
        )
        return QuantizedHead(norm, matrix, self._spec.logit_cap)

    def _embedding(self) -> tuple[Tensor, Tensor]:
        levels = INT8_MAX if self._spec.post_norm_eps is None else PRECISE_LEVELS
        parts = [
            round_embedding(self._stream(rows), levels)
            for rows in self._rows_of("token_embd.weight")
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _stream(self, embeddings: Tensor) -> Tensor:
        """Rows of the embedding [n, width] as the residual stream begins with them."""
        rows = norm_embeddings(embeddings, self._spec)
        return rows if self._rotation is None else self._rotation.of_rows(rows)

    def _rows_of(self, name: str) -> Iterator[Tensor]:
        for begin in range(0, self._spec.vocab_size, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, self._spec.vocab_size)
            yield torch.from_numpy(self._weights.get_rows(name, np.arange(begin, end)))

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.require(self._weights.get(name), requirements="W"))


def export_program(
    source: Path, target: Path, options: ExportConfig, progress: Progress
) -> dict[str, Any]:
    """Write `model.pte`, and the files of the vision tower, into the folder `target`.

    Returns what the manifest notes about them. Raises ModelFileError, ExecutionError.
    """
    methods = ["forward"]
    with (
        open_source(source) as model,
        open_vision(model, options.mmproj) as tower,
        open_draft(model, options.draft_gguf) as draft,
        torch.inference_mode(),
    ):
        taps = () if draft is None else draft.spec.taps
        if taps and _stream_rotation(model.spec) is not None:
            raise ModelFileError(
                f"{source}: the cpu backend exports drafts of {MUSE_GLIMMER!r} only, "
                f"not of {model.spec.architecture!r}"
            )
        Exporter(model, options, progress, taps).write(target / PROGRAM_NAME)
        if draft is not None:
            DraftExporter(draft, model.weights, options, progress).write(target)
            methods += [BLOCK, CONTEXT]
        if tower is not None:
            rotation = _stream_rotation(model.spec)
            turn = nn.Identity() if rotation is None else rotation.of_rows
            VisionExporter(tower, turn, progress).write(target)
            methods += [ENCODER, PROJECTOR]
    return {"program": PROGRAM_NAME, "methods": methods}


def _stream_rotation(spec: ModelSpec) -> ResidualRotation | None:
    """None where norms behind sub-layers have weights in the stream's own basis."""
    return ResidualRotation(spec.width) if spec.post_norm_eps is None else None
