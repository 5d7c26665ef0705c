"""Modules in the form XNNPACK runs, whatever their weights are."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Centre(nn.Module):
    """Rows [T, width] less their means, by a matrix product: XNNPACK has no mean over rows."""

    mean: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, width), 1 / width))

    def forward(self, x: Tensor) -> Tensor:
        return x - nn.functional.linear(x, self.mean)


class RowNorm(nn.Module):
    """RMSNorm; the mean of squares is a matrix product too."""

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


class CentredNorm(nn.Module):
    """LayerNorm: what is left of an RMSNorm of the centred row is the bias."""

    bias: Tensor

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.centre = Centre(len(norm.weight))
        squares = nn.RMSNorm(norm.normalized_shape, norm.eps)
        squares.weight.data = norm.weight.data
        self.norm = RowNorm(squares)
        self.register_buffer("bias", norm.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.centre(x)) + self.bias
        return normed


def use_row_norms(module: nn.Module) -> None:
    """Put what XNNPACK runs in the place of all norms in a module."""
    for name, norm in list(module.named_modules()):
        if isinstance(norm, nn.RMSNorm):
            module.set_submodule(name, RowNorm(norm))
        elif isinstance(norm, nn.LayerNorm):
            module.set_submodule(name, CentredNorm(norm))


class Head(nn.Module):
    """The final norm and the head, with a soft cap where there is one.

    output: gives logits divided by the cap.
    """

    cap: Tensor | None

    def __init__(self, norm: nn.Module, output: nn.Module, cap: float | None) -> None:
        super().__init__()
        self.norm = norm
        self.output = output
        self.register_buffer("cap", None if cap is None else torch.full((1,), cap))

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.output(self.norm(h))
        return logits if self.cap is None else torch.tanh(logits) * self.cap
