"""Rotations folded into weights, so that no channel of an activation towers over the others.

Rounding a row of activations to 8 bits costs what its largest value says, and
transformers have a few channels hundreds of times larger than the rest. An
orthogonal change of basis spreads them out (Ashkboos et al. 2024, QuaRot,
arXiv:2404.00456), and where a norm without weights and linear maps surround it,
it vanishes into the maps: the residual stream and the heads' values turn for
nothing. Only the feed-forward's inner vector is turned at run time, in blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Block

# Widest block turned at run time: a 64 x 64 matrix costs 2 to 4 % of the down projection.
MAX_RUNTIME_BLOCK = 64
MIN_RUNTIME_BLOCK = 16


def largest_power_of_two(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


def hadamard(x: Tensor, block: int) -> Tensor:
    """x [..., n] with each run of `block` values multiplied by the orthonormal Hadamard matrix.

    Sylvester's construction, as a fast Walsh-Hadamard transform; `block` is a power
    of two that divides n. The matrix is symmetric and its own inverse.
    """
    shape = x.shape
    half = 1
    while half < block:
        pairs = x.reshape(-1, 2, half)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), dim=1)
        half *= 2
    orthonormal: Tensor = x.reshape(shape) / block**0.5
    return orthonormal


class ResidualRotation:
    """A fixed orthogonal matrix R = (O kron H) S for a width of odd * 2^k.

    O is a random orthogonal matrix [odd, odd], H the Hadamard matrix [2^k, 2^k], S
    random signs. Applied to a row vector h as h R.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._block = largest_power_of_two(width)
        odd = width // self._block
        gaussian = torch.randn(odd, odd, generator=generator, dtype=torch.float64)
        self._orthogonal = torch.linalg.qr(gaussian).Q.to(torch.float32)
        coins = torch.randint(0, 2, (width,), generator=generator)
        self._signs = (2 * coins - 1).to(torch.float32)

    def of_rows(self, x: Tensor) -> Tensor:
        """x R for x [n, width]."""
        turned = hadamard(x, self._block).view(len(x), -1, self._block)
        mixed = torch.einsum("nab,ac->ncb", turned, self._orthogonal)
        return mixed.reshape(x.shape) * self._signs


def fold_norm(norm: nn.RMSNorm, *linears: nn.Linear) -> None:
    """Move a norm's weights into the linear maps it feeds; the norm is left with ones."""
    for linear in linears:
        linear.weight.data = linear.weight * norm.weight
    norm.weight.data = torch.ones_like(norm.weight)


class HadamardInput(nn.Module):
    """A linear map on a vector turned in blocks, as one matrix product that XNNPACK runs."""

    matrix: Tensor

    def __init__(self, linear: nn.Module, block: int) -> None:
        super().__init__()
        self.linear = linear
        self.block = block
        self.register_buffer("matrix", hadamard(torch.eye(block), block))

    def forward(self, x: Tensor) -> Tensor:
        turned = nn.functional.linear(x.view(-1, x.shape[1] // self.block, self.block), self.matrix)
        output: Tensor = self.linear(turned.view(-1, x.shape[1]))
        return output


def rotate_block(block: Block, residual: ResidualRotation) -> None:
    """Rewrite a block for a residual stream in the rotated basis; its function stays the same.

    Afterwards `ffn_down` may be a `HadamardInput`.
    """
    fold_norm(block.attn_norm, block.attn_q, block.attn_k, block.attn_v)
    fold_norm(block.ffn_norm, block.ffn_gate, block.ffn_up)
    for linear in (block.attn_q, block.attn_k, block.attn_v, block.ffn_gate, block.ffn_up):
        linear.weight.data = residual.of_rows(linear.weight)
    for linear in (block.attn_output, block.ffn_down):
        linear.weight.data = residual.of_rows(linear.weight.T).T.contiguous()

    head_block = largest_power_of_two(block.head_width)
    block.attn_v.weight.data = hadamard(block.attn_v.weight.T, head_block).T.contiguous()
    if block.attn_v.bias is not None:
        block.attn_v.bias.data = hadamard(block.attn_v.bias[None], head_block)[0]
    block.attn_output.weight.data = hadamard(block.attn_output.weight, head_block)

    inner = min(MAX_RUNTIME_BLOCK, largest_power_of_two(block.ffn_down.in_features))
    if inner >= MIN_RUNTIME_BLOCK:
        block.ffn_down.weight.data = hadamard(block.ffn_down.weight, inner)
        block.set_submodule("ffn_down", HadamardInput(block.ffn_down, inner))
