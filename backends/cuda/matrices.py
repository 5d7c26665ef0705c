"""Matrices whose numbers are integers in groups: weight = scale * integer + bias.

weight: uint8 [out, columns * bits / 8], two integers of 4 bits in a byte, the first one low.
scales, biases: float16 or float32 [out, columns / group].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.cuda import kernels

# Weights that are made floats at once, where a product is of too many rows for a kernel.
_DENSE_WEIGHTS = 2**26


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [out, columns]; see the module."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    columns: int

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The floats [out, columns]; computed in float32, where they are GGUF's to the last bit."""
        integers = self.weight
        if integers.shape[1] < self.columns:
            integers = torch.stack((integers & 15, integers >> 4), dim=-1)
        values = integers.view(*self.scales.shape, -1).to(torch.float32)
        values = values * self.scales.float()[:, :, None] + self.biases.float()[:, :, None]
        return values.to(dtype).view(-1, self.columns)

    def rows(self, chosen: Tensor | slice) -> PackedMatrix:
        """Only these rows."""
        return PackedMatrix(
            self.weight[chosen], self.scales[chosen], self.biases[chosen], self.columns
        )


@torch.library.custom_op("astrai::packed_product", mutates_args=())
def _product(x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    matrix = PackedMatrix(weight, scales, biases, x.shape[1])
    if kernels.can_multiply(x):
        return kernels.multiply(x, weight, scales, biases)
    step = max(1, _DENSE_WEIGHTS // matrix.columns)
    parts = [
        x @ matrix.rows(slice(begin, begin + step)).dequantized(x.dtype).T
        for begin in range(0, len(weight), step)
    ]
    return torch.cat(parts, dim=1)


@_product.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class _Packed(nn.Module):
    weight: Tensor
    scales: Tensor
    biases: Tensor

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.columns = matrix.columns
        for name in ("weight", "scales", "biases"):
            self.register_buffer(name, getattr(matrix, name))

    @property
    def matrix(self) -> PackedMatrix:
        return PackedMatrix(self.weight, self.scales, self.biases, self.columns)


class PackedLinear(_Packed):
    """Takes the place of `nn.Linear`."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix)
        self.bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _product(x, self.weight, self.scales, self.biases)
        return product if self.bias is None else product + self.bias


class PackedEmbedding(_Packed):
    """Takes the place of `nn.Embedding`."""

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype) -> None:
        super().__init__(matrix)
        self._dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        return self.matrix.rows(tokens).dequantized(self._dtype)
