"""Rotations folded into weights, so that no channel of an activation towers over the others.

Rounding a row of activations to 8 bits costs what its largest value says, and
transformers have a few channels hundreds of times larger than the rest. An
orthogonal change of basis spreads them out (Ashkboos et al. 2024, QuaRot,
arXiv:2404.00456), and where a norm without weights and linear maps surround it,
it vanishes into the maps: the residual stream and the heads' values turn for
nothing. Only the feed-forward's inner vector is turned at run time, in blocks.
Norms behind the sub-layers pin the residual stream to its basis; such models turn
the input of every map in blocks at run time.
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


class BlockHadamard(nn.Module):
    """A vector turned in blocks at run time, as one matrix product that XNNPACK runs."""

    matrix: Tensor

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("matrix", hadamard(torch.eye(block), block))

    def forward(self, x: Tensor) -> Tensor:
        turned = nn.functional.linear(x.view(-1, x.shape[1] // self.block, self.block), self.matrix)
        return turned.view(-1, x.shape[1])


class HadamardInput(nn.Module):
    """A linear map on a vector turned in blocks."""

    def __init__(self, linear: nn.Module, block: int) -> None:
        super().__init__()
        self.linear = linear
        self.block = block
        self.turn = BlockHadamard(block)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.turn(x))
        return output


def runtime_block(width: int) -> int | None:
    """The block a vector of this width is turned in at run time; None where none is worth it."""
    block = min(MAX_RUNTIME_BLOCK, largest_power_of_two(width))
    return block if block >= MIN_RUNTIME_BLOCK else None


def rotate_block(block: Block, residual: ResidualRotation) -> None:
    """Rewrite a block for a residual stream in the rotated basis; its function stays the same.

    Afterwards `ffn_down` may be a `HadamardInput`. Not for blocks with norms behind
    their sub-layers: the weights of those stand in the stream's own basis.
    """
    fold_norm(block.attn_norm, block.attn_q, block.attn_k, block.attn_v)
    fold_norm(block.ffn_norm, block.ffn_gate, block.ffn_up)
    for linear in (block.attn_q, block.attn_k, block.attn_v, block.ffn_gate, block.ffn_up):
        linear.weight.data = residual.of_rows(linear.weight)
    for linear in (block.attn_output, block.ffn_down):
        linear.weight.data = residual.of_rows(linear.weight.T).T.contiguous()

    turn_heads(block.attn_v, block.attn_output, block.head_width)
    turn_input(block, "ffn_down")


def turn_heads(attn_v: nn.Linear, attn_output: nn.Linear, head_width: int) -> None:
    """Turn the heads' values, which attention only weighs, and undo it in what takes them."""
    block = largest_power_of_two(head_width)
    attn_v.weight.data = hadamard(attn_v.weight.T, block).T.contiguous()
    if attn_v.bias is not None:
        attn_v.bias.data = hadamard(attn_v.bias[None], block)[0]
    attn_output.weight.data = hadamard(attn_output.weight, block)


def turn_block(block: Block) -> None:
    """Rewrite a block so that every linear map gets a vector turned in blocks at run time.

    For blocks that `rotate_block` cannot rewrite. The function stays the same.
    Afterwards norms may be followed by a `BlockHadamard`, and `attn_output` and
    `ffn_down` may be a `HadamardInput`.
    """
    gate = (block.attn_gate,) if block.gated else ()
    turn_norm(block, "attn_norm", block.attn_q, block.attn_k, block.attn_v, *gate)
    turn_norm(block, "ffn_norm", block.ffn_gate, block.ffn_up)
    turn_input(block, "attn_output")
    turn_input(block, "ffn_down")


def turn_norm(parent: nn.Module, name: str, *linears: nn.Linear) -> None:
    """Fold a norm's weights into the maps it feeds, and turn what it gives in blocks."""
    norm = parent.get_submodule(name)
    assert isinstance(norm, nn.RMSNorm)
    fold_norm(norm, *linears)
    block = runtime_block(norm.normalized_shape[0])
    if block is not None:
        for linear in linears:
            linear.weight.data = hadamard(linear.weight, block)
        parent.set_submodule(name, nn.Sequential(norm, BlockHadamard(block)))


def turn_input(parent: nn.Module, name: str) -> None:
    """Give a linear map a vector turned in blocks; it may become a `HadamardInput`."""
    linear = parent.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    block = runtime_block(linear.in_features)
    if block is not None:
        linear.weight.data = hadamard(linear.weight, block)
        parent.set_submodule(name, HadamardInput(linear, block))
