"""Weights rounded to int8 so that the error of the outputs, not of the weights, is small.

GPTQ (Frantar et al. 2022, arXiv:2210.17323): columns are rounded one after the
other, and what a column lost is made up for in those still to come, weighed by
how their inputs occur together in a calibration text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INT8_MAX = 127
COLUMNS_A_BLOCK = 64
# Added to the diagonal, as a share of its mean, so that rare inputs do not blow up the inverse.
DAMPING = 0.01


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """values: int8 [out, in] in -127 … 127; scales: float32 [out]; the matrix is their product."""

    values: Tensor
    scales: Tensor


class InputStatistics:
    """The sum of x^T x over the rows x a linear map was given: float64 [in, in]."""

    def __init__(self) -> None:
        self.moments: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Count in x [n, in]."""
        moments = (x.T @ x).to(torch.float64)
        self.moments = moments if self.moments is None else self.moments + moments


def channel_scales(weight: Tensor) -> Tensor:
    """float32 [out]: the step that lets the largest weight of each row reach 127."""
    smallest = torch.finfo(torch.float32).tiny * INT8_MAX
    scales: Tensor = weight.abs().amax(dim=1).clamp_min(smallest) / INT8_MAX
    return scales


def round_to_int8(weight: Tensor, moments: Tensor | None) -> Int8Matrix:
    """Round weight float32 [out, in], minding the inputs' second moments [in, in].

    Without moments that say anything each weight goes to its nearest step.
    """
    scales = channel_scales(weight)
    if moments is None or not moments.any() or not moments.isfinite().all():
        return Int8Matrix(_nearest(weight, scales[:, None]).to(torch.int8), scales)
    return Int8Matrix(_gptq(weight, scales, _inverse_factor(moments)), scales)


def _nearest(weight: Tensor, scales: Tensor) -> Tensor:
    return torch.round(weight / scales).clamp(-INT8_MAX, INT8_MAX)


def _inverse_factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the damped moments' inverse: float32 [in, in]."""
    damped = moments + torch.eye(len(moments)) * (DAMPING * moments.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True).to(torch.float32)
    return factor


def _gptq(weight: Tensor, scales: Tensor, factor: Tensor) -> Tensor:
    """int8 [out, in]; errors spread inside a block of columns at once, past it at its end."""
    # Columns lie as rows, so that the values that change together are neighbours.
    remaining = weight.T.clone(memory_format=torch.contiguous_format)
    values = torch.empty(remaining.shape, dtype=torch.int8)
    for begin in range(0, len(remaining), COLUMNS_A_BLOCK):
        end = min(begin + COLUMNS_A_BLOCK, len(remaining))
        errors = torch.empty_like(remaining[begin:end])
        for here in range(begin, end):
            current = remaining[here]
            rounded = _nearest(current, scales)
            values[here] = rounded
            error = (current - rounded * scales) / factor[here, here]
            remaining[here + 1 : end].addr_(factor[here, here + 1 : end], error, alpha=-1)
            errors[here - begin] = error
        remaining[end:].addmm_(factor[begin:end, end:].T, errors, alpha=-1)
    return values.T.contiguous()
