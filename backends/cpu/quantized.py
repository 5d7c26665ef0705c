"""The decoder's modules in the form XNNPACK runs: int8 weights, activations rounded row by row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

# Defines the quantized_decomposed operators that XNNPACK's lowering recognises.
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

from astrai_cli.models.decoder import Block
from backends.cpu.rotation import HadamardInput
from backends.cpu.rounding import INT8_MAX, Int8Matrix

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


class RowNorm(nn.Module):
    """RMSNorm whose mean is a matrix product, since XNNPACK has no mean over rows."""

    mean: Tensor
    eps: Tensor
    weight: Tensor | None

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        (width,) = norm.normalized_shape
        self.register_buffer("mean", torch.full((1, width), 1 / width))
        self.register_buffer("eps", torch.full((1,), norm.eps or 0.0))
        weight = norm.weight.detach()
        self.register_buffer("weight", None if (weight == 1).all() else weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(nn.functional.linear(x * x, self.mean, self.eps))
        return normed if self.weight is None else normed * self.weight


def quantize_block(block: Block, matrices: Mapping[str, Int8Matrix]) -> Block:
    """Put the int8 `matrices`, by module name, in the place of a block's linear maps."""
    for name, matrix in matrices.items():
        linear = block.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        bias = linear.bias
        quantized = Int8Linear(matrix, None if bias is None else bias.detach().clone())
        block.set_submodule(name, quantized)
    # Queries, keys and values share one rounding of the norm's output, as gate and up do.
    for name in ("attn_norm", "ffn_norm"):
        block.set_submodule(name, nn.Sequential(_row_norm(block, name), RoundRows()))
    down = "ffn_down.linear" if isinstance(block.ffn_down, HadamardInput) else "ffn_down"
    for name in ("attn_output", down):
        block.set_submodule(name, nn.Sequential(RoundRows(), block.get_submodule(name)))
    if block.qk_norm:
        for name in ("attn_q_norm", "attn_k_norm"):
            block.set_submodule(name, _row_norm(block, name))
    return block


def _row_norm(block: Block, name: str) -> RowNorm:
    norm = block.get_submodule(name)
    assert isinstance(norm, nn.RMSNorm)
    return RowNorm(norm)


class QuantizedHead(nn.Module):
    """The final norm and the head."""

    def __init__(self, norm: nn.RMSNorm, matrix: Int8Matrix) -> None:
        super().__init__()
        self.norm = nn.Sequential(RowNorm(norm), RoundRows())
        self.output = Int8Linear(matrix, None)

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.output(self.norm(h))
        return logits


EMBEDDING_GROUP = 32
_LEAST_FLOAT16 = 2.0**-24


def round_embedding(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Embedding rows float32 [n, width] as int8 [n, width] with float16 scales [n, groups]."""
    n, width = rows.shape
    group = EMBEDDING_GROUP if width % EMBEDDING_GROUP == 0 else width
    grouped = rows.view(n, -1, group)
    steps = grouped.abs().amax(dim=2, keepdim=True) / INT8_MAX
    scales = steps.clamp_min(_LEAST_FLOAT16).to(torch.float16)
    values = torch.round(grouped / scales.to(torch.float32)).clamp(-INT8_MAX, INT8_MAX)
    return values.to(torch.int8).view(n, width), scales[..., 0]
