"""Matrices whose numbers are integers in groups: weight = scale * integer + bias.

weight: uint8 [out, columns * bits / 8], two integers of 4 bits in a byte, the first one low.
scales, biases: float16 [out, columns / group]; or, where they are nested, int8 factors of units,
float16 [out, columns / SUPERBLOCK, 2], which has one for scales and one for biases.
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
    units: Tensor | None
    columns: int

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The floats [out, columns]; computed in float32, where they are GGUF's to the last bit."""
        integers = self.weight
        if integers.shape[1] < self.columns:
            integers = torch.stack((integers & 15, integers >> 4), dim=-1)
        scales, biases = self.float_scales()
        values = integers.view(*scales.shape, -1).to(torch.float32)
        values = values * scales[:, :, None] + biases[:, :, None]
        return values.to(dtype).view(-1, self.columns)

    def float_scales(self) -> tuple[Tensor, Tensor]:
        """Scales and biases, float32 [out, groups]."""
        scales, biases = self.scales.float(), self.biases.float()
        if self.units is None:
            return scales, biases
        units = self.units.float()
        shape = (*units.shape[:2], -1)
        scaled = scales.view(shape) * units[:, :, :1], biases.view(shape) * units[:, :, 1:]
        return scaled[0].view(scales.shape), scaled[1].view(biases.shape)

    def rows(self, chosen: Tensor | slice) -> PackedMatrix:
        """Only these rows."""
        return PackedMatrix(
            self.weight[chosen],
            self.scales[chosen],
            self.biases[chosen],
            None if self.units is None else self.units[chosen],
            self.columns,
        )


@torch.library.custom_op("astrai::packed_product", mutates_args=())
def _product(
    x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor, units: Tensor | None
) -> Tensor:
    matrix = PackedMatrix(weight, scales, biases, units, x.shape[1])
    if kernels.can_multiply(x):
        return kernels.multiply(x, weight, scales, biases, units)
    step = max(1, _DENSE_WEIGHTS // matrix.columns)
    parts = [
        x @ matrix.rows(slice(begin, begin + step)).dequantized(x.dtype).T
        for begin in range(0, len(weight), step)
    ]
    return torch.cat(parts, dim=1)


@_product.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor, units: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class _Packed(nn.Module):
    weight: Tensor
    scales: Tensor
    biases: Tensor
    units: Tensor | None

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self.columns = matrix.columns
        for name in ("weight", "scales", "biases", "units"):
            self.register_buffer(name, getattr(matrix, name))

    @property
    def matrix(self) -> PackedMatrix:
        return PackedMatrix(self.weight, self.scales, self.biases, self.units, self.columns)


class PackedLinear(_Packed):
    """Takes the place of `nn.Linear`."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix)
        self.bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _product(x, self.weight, self.scales, self.biases, self.units)
        return product if self.bias is None else product + self.bias


class PackedEmbedding(_Packed):
    """Takes the place of `nn.Embedding`."""

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype) -> None:
        super().__init__(matrix)
        self._dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        return self.matrix.rows(tokens).dequantized(self._dtype)
