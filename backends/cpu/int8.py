"""A model's weights as int8, rotated and rounded so that little is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Block, norm_embeddings
from astrai_cli.models.draft import BlockDraft
from astrai_cli.models.rope import rope_frequencies
from astrai_cli.models.source import ModelSource
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.vision import VisionBlock
from astrai_cli.models.vision_spec import VisionSpec
from backends.cpu.calibration import Calibration, calibration_tokens
from backends.cpu.modules import Centre, Head, RowNorm, use_row_norms
from backends.cpu.quantized import (
    PRECISE_LEVELS,
    Int8Linear,
    PreciseLinear,
    RoundRows,
    quantize_block,
    quantize_vision_block,
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
from backends.cpu.vision_rotation import (
    cells_from_stream,
    plain_norm,
    rotate_vision_block,
    stream_map,
)


def stream_rotation(spec: ModelSpec) -> ResidualRotation | None:
    """None where norms behind sub-layers have weights in the stream's own basis."""
    return ResidualRotation(spec.width) if spec.post_norm_eps is None else None


class Int8Text:
    """A text model's weights: rotated, and rounded by what a calibration text makes of them."""

    def __init__(self, source: ModelSource) -> None:
        self._spec = spec = source.spec
        self._rotation = stream_rotation(spec)
        tokens = calibration_tokens(source.tokenizer(), spec)
        rows = source.weights.get_rows("token_embd.weight", tokens.reshape(-1))
        h = self._stream(torch.from_numpy(rows)).view(*tokens.shape, spec.width)
        frequencies = torch.from_numpy(rope_frequencies(spec.rope))
        self._calibration = Calibration(h, spec, frequencies)

    def block(self, block: Block) -> Block:
        if self._rotation is None:
            turn_block(block)
        else:
            rotate_block(block, self._rotation)
        return quantize_block(block, self._calibration.run(block))

    def head(self, gains: Tensor, rows: Iterable[Tensor]) -> Head:
        norm = nn.RMSNorm(self._spec.width, self._spec.norm_eps).requires_grad_(False)
        behind: list[nn.Module] = []
        turn: Callable[[Tensor], Tensor] = nn.Identity()
        if self._rotation is not None:
            turn = self._rotation.of_rows
        elif (block := runtime_block(self._spec.width)) is not None:
            turn = partial(hadamard, block=block)
            behind.append(BlockHadamard(block))
        moments = self._calibration.run_head(nn.Sequential(norm, *behind)).moments
        matrix = _joined(round_to_int8(turn(part * gains), moments) for part in rows)
        normed = nn.Sequential(RowNorm(norm), *behind, RoundRows())
        return Head(normed, Int8Linear(matrix, None), self._spec.logit_cap)

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        levels = INT8_MAX if self._spec.post_norm_eps is None else PRECISE_LEVELS
        return _rounded_table((self._stream(part) for part in rows), levels)

    def _stream(self, embeddings: Tensor) -> Tensor:
        """Rows of the embedding [n, width] as the residual stream begins with them."""
        rows = norm_embeddings(embeddings, self._spec)
        return rows if self._rotation is None else self._rotation.of_rows(rows)


class Int8Vision:
    """A vision tower's weights: centred and rotated, and each rounded to the nearest."""

    def __init__(self, spec: VisionSpec, text: ModelSpec) -> None:
        self._residual = ResidualRotation(spec.width)
        self._text_rotation = stream_rotation(text)

    def enter(self, norm: nn.LayerNorm) -> nn.Module:
        stream = stream_map(norm, self._residual)
        return nn.Sequential(Centre(len(norm.weight)), RowNorm(plain_norm(norm)), stream)

    def block(self, block: VisionBlock) -> VisionBlock:
        rotate_vision_block(block, self._residual)
        return quantize_vision_block(block)

    def leave(self, norm: nn.LayerNorm) -> nn.Module:
        return RowNorm(plain_norm(norm))

    def projector(self, weights: Sequence[Tensor], norm: nn.LayerNorm) -> list[nn.Module]:
        """Few, so they keep nearly 16 bits; rounded, they cost as much as all others together."""
        first, second, last = weights
        from_stream = cells_from_stream(first, norm, self._residual)
        if self._text_rotation is not None:
            # The norm behind the last map has no weight, so a rotation may come before it.
            last = self._text_rotation.of_rows(last.T).T.contiguous()
        return [
            PreciseLinear(from_stream.weight, from_stream.bias.detach()),
            PreciseLinear(second),
            PreciseLinear(last),
        ]


class Int8Draft:
    """A block draft's weights, which keep nearly 16 bits, and its int8 copy of the head.

    A draft is small, and what its errors cost is accepted tokens.
    """

    def put_into(self, draft: BlockDraft) -> None:
        for name, module in list(draft.named_modules()):
            if isinstance(module, nn.Linear):
                draft.set_submodule(name, PreciseLinear(module.weight))
        use_row_norms(draft)

    def head(self, rows: Iterable[Tensor]) -> nn.Module:
        return Int8Linear(_joined(round_to_int8(part, None) for part in rows), None)

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        return _rounded_table(rows, PRECISE_LEVELS)


def _joined(parts: Iterable[Int8Matrix]) -> Int8Matrix:
    """The rows of several matrices in one."""
    pairs = [(part.values, part.scales) for part in parts]
    values, scales = (torch.cat(each) for each in zip(*pairs, strict=True))
    return Int8Matrix(values, scales)


def _rounded_table(rows: Iterable[Tensor], levels: int) -> tuple[Tensor, Tensor]:
    parts = [round_embedding(part, levels) for part in rows]
    values, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return values, scales
