"""A model file as one `.pte`, read and converted layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.config import ExportConfig
from astrai_cli.errors import ModelFileError
from astrai_cli.models.decoder import Block
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.rope import rope_frequencies
from astrai_cli.models.source import ModelSource, open_source, open_vision
from astrai_cli.models.spec import MUSE_GLIMMER, ModelSpec
from backends.base import Progress
from backends.cpu.arithmetic import TextWeights, arithmetic
from backends.cpu.draft import BLOCK, CONTEXT
from backends.cpu.draft_export import DraftExporter
from backends.cpu.lowering import Program, SegmentLowering, export_step, write_exported
from backends.cpu.segments import FirstSegment, LastSegment, MiddleSegment
from backends.cpu.vision import ENCODER, PROJECTOR
from backends.cpu.vision_export import VisionExporter

PROGRAM_NAME = "model.pte"
ROWS_AT_ONCE = 8192


class Exporter:
    """One export. Memory: weights as `weights` makes them, and the float32 weights of a layer.

    taps: layers whose outputs the program gives besides the logits, side by side.
    """

    def __init__(
        self,
        source: ModelSource,
        weights: TextWeights,
        options: ExportConfig,
        progress: Progress,
        taps: Sequence[int] = (),
    ) -> None:
        self._taps = tuple(taps)
        self._spec: ModelSpec = source.spec
        self._source = source.weights
        self._weights = weights
        self._max_rows = options.max_prefill_chunk
        self._progress = progress

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
        self._progress("converting the head", 0.85)
        segments.append(lowering.lower(LastSegment(previous, self._head()), inputs))
        self._progress("writing the program", 0.9)
        embedding = self._weights.embedding(self._rows_of("token_embd.weight"))
        frequencies = torch.from_numpy(rope_frequencies(self._spec.rope))
        program = Program(self._spec, embedding, frequencies, segments, self._taps)
        write_exported(path, {"forward": export_step(program, self._max_rows)})

    def _blocks(self) -> Iterator[Block]:
        for layer in range(self._spec.n_layers):
            self._progress(
                f"converting layer {layer + 1} of {self._spec.n_layers}",
                0.8 * layer / self._spec.n_layers,
            )
            yield self._weights.block(self._load_block(layer))

    def _load_block(self, layer: int) -> Block:
        with torch.device("meta"):
            block = Block(self._spec, layer)
        state = {name: self._tensor(f"blk.{layer}.{name}") for name in block.state_dict()}
        block.load_state_dict(state, assign=True)
        return block.requires_grad_(False).eval()

    def _head(self) -> nn.Module:
        gains = self._tensor("output_norm.weight")
        gains *= self._spec.logit_scale / (self._spec.logit_cap or 1.0)
        name = "token_embd.weight" if self._spec.tied_head else "output.weight"
        return self._weights.head(gains, self._rows_of(name))

    def _rows_of(self, name: str) -> Iterator[Tensor]:
        for begin in range(0, self._spec.vocab_size, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, self._spec.vocab_size)
            yield torch.from_numpy(self._source.get_rows(name, np.arange(begin, end)))

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.require(self._source.get(name), requirements="W"))


def export_program(
    source: Path, target: Path, options: ExportConfig, progress: Progress
) -> dict[str, Any]:
    """Write `model.pte`, and the files of tower and draft, into the folder `target`.

    Returns what the manifest notes about them. Raises InvalidInputError, ModelFileError,
    ExecutionError.
    """
    chosen = arithmetic(options.activation_dtype)
    methods = ["forward"]
    with (
        open_source(source) as model,
        open_vision(model, options.mmproj) as tower,
        open_draft(model, options.draft_gguf) as draft,
        torch.inference_mode(),
    ):
        taps = () if draft is None else draft.spec.taps
        if taps and chosen.turns_stream(model.spec):
            raise ModelFileError(
                f"{source}: the cpu backend exports drafts of {MUSE_GLIMMER!r} only, "
                f"not of {model.spec.architecture!r}"
            )
        text = Exporter(model, chosen.text(model), options, progress, taps)
        text.write(target / PROGRAM_NAME)
        if draft is not None:
            weights = chosen.draft()
            DraftExporter(draft, model.weights, weights, options, progress).write(target)
            methods += [BLOCK, CONTEXT]
        if tower is not None:
            VisionExporter(tower, chosen.vision(tower.spec, model.spec), progress).write(target)
            methods += [ENCODER, PROJECTOR]
    return {"program": PROGRAM_NAME, "methods": methods, **chosen.details}
