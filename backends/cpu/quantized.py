"""Linear maps with int8 weights as XNNPACK runs them, activations rounded row by row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

# Defines the quantized_decomposed operators that XNNPACK's lowering recognises.
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

from astrai_cli.models.decoder import Block
from astrai_cli.models.vision import VisionBlock
from backends.cpu.modules import use_row_norms
from backends.cpu.rounding import INT8_MAX, InputStatistics, Int8Matrix, round_to_int8

_ops = torch.ops.quantized_decomposed


class RoundRows(nn.Module):
    """Each row rounded to int8 with a scale and zero point of its own, chosen as it comes."""

    def forward(self, x: Tensor) -> Tensor:
        scales, zero_points = _ops.choose_qparams_per_token_asymmetric.default(x, torch.int8)
        bounds = (-128, 127, torch.int8)
        values = _ops.quantize_per_token.default(x, scales, zero_points, *bounds)
        rounded: Tensor = _ops.dequantize_per_token.default(
            values, scales, zero_points, *bounds, torch.float32
        )
        return rounded


class Int8Linear(nn.Module):
    """A linear map with int8 weights [out, in], one scale a row, on rounded rows."""

    values: Tensor
    scales: Tensor
    zero_points: Tensor
    bias: Tensor | None

    def __init__(self, matrix: Int8Matrix, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("values", matrix.values)
        self.register_buffer("scales", matrix.scales)
        zeros = torch.zeros(len(matrix.scales), dtype=torch.int64)
        self.register_buffer("zero_points", zeros, persistent=False)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = _ops.dequantize_per_channel.default(
            self.values, self.scales, self.zero_points, 0, -INT8_MAX, INT8_MAX, torch.int8
        )
        return nn.functional.linear(x, weight, self.bias)


class PreciseLinear(nn.Module):
    """A linear map with weights of nearly 16 bits, on rows in float32.

    The weights are an int8 matrix and a second one that holds what the first lost.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        coarse = round_to_int8(weight, None)
        lost = weight - coarse.values * coarse.scales[:, None]
        self.coarse = Int8Linear(coarse, None)
        self.fine = Int8Linear(round_to_int8(lost, None), None)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.coarse(x) + self.fine(x)
        return output if self.bias is None else output + self.bias


# Sharply scaled scores make an error in a query or key weigh many times that of another,
# and with grouped heads these three are small.
_PRECISE = frozenset({"attn_q", "attn_k", "attn_v"})


def quantize_block(block: Block, statistics: Mapping[str, InputStatistics]) -> Block:
    """Put rounded maps in the place of a block's linear maps, named in `statistics`.

    Where norms follow the sub-layers, `_PRECISE` maps stay close to float32.
    """
    precise = _PRECISE if block.post_norms else frozenset()
    for name, inputs in statistics.items():
        linear = block.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        if name in precise:
            block.set_submodule(name, PreciseLinear(linear.weight))
            continue
        bias = None if linear.bias is None else linear.bias.detach().clone()
        rounded = Int8Linear(round_to_int8(linear.weight, inputs.moments), bias)
        alone = name.startswith(("attn_output", "ffn_down")) or (name == "attn_gate" and precise)
        block.set_submodule(name, nn.Sequential(RoundRows(), rounded) if alone else rounded)
    use_row_norms(block)
    # Maps that share an input share its rounding.
    for name in ("ffn_norm",) if precise else ("attn_norm", "ffn_norm"):
        block.set_submodule(name, nn.Sequential(block.get_submodule(name), RoundRows()))
    return block


_SHARE_AN_INPUT = frozenset({"attn_q", "attn_k", "attn_v", "ffn_up"})


def quantize_vision_block(block: VisionBlock) -> VisionBlock:
    """Put rounded maps and norms in the place of a rotated block's own."""
    for name, linear in list(block.named_modules()):
        if isinstance(linear, nn.Linear):
            bias = linear.bias.detach().clone()
            rounded = Int8Linear(round_to_int8(linear.weight, None), bias)
            alone = nn.Sequential(RoundRows(), rounded)
            block.set_submodule(name, rounded if name in _SHARE_AN_INPUT else alone)
    use_row_norms(block)
    # Maps that share an input share its rounding.
    for name in ("ln1", "ln2"):
        block.set_submodule(name, nn.Sequential(block.get_submodule(name), RoundRows()))
    return block


EMBEDDING_GROUP = 32
# For int16: as many as leave the scales of normed rows in float16's normal range.
PRECISE_LEVELS = 2**13 - 1
_LEAST_FLOAT16 = 2.0**-24


def round_embedding(rows: Tensor, levels: int = INT8_MAX) -> tuple[Tensor, Tensor]:
    """Embedding rows float32 [n, width] as integers [n, width] with float16 scales [n, groups].

    levels: the largest integer; those up to 127 are int8, others int16.
    """
    n, width = rows.shape
    group = EMBEDDING_GROUP if width % EMBEDDING_GROUP == 0 else width
    grouped = rows.view(n, -1, group)
    steps = grouped.abs().amax(dim=2, keepdim=True) / levels
    scales = steps.clamp_min(_LEAST_FLOAT16).to(torch.float16)
    values = torch.round(grouped / scales.to(torch.float32)).clamp(-levels, levels)
    kind = torch.int8 if levels <= INT8_MAX else torch.int16
    return values.to(kind).view(n, width), scales[..., 0]
