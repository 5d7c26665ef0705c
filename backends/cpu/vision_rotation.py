"""Rotations folded into a vision tower, as `rotation` folds them into a decoder.

A LayerNorm is an RMSNorm of the centred row. So where all that is added to the
residual stream is centred, norms lose their means, and the stream may turn (Ashkboos
et al. 2024, SliceGPT, arXiv:2401.15024).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from astrai_cli.models.vision import VisionBlock
from backends.cpu.rotation import ResidualRotation, turn_heads, turn_input


def as_stream(rows: Tensor, residual: ResidualRotation) -> Tensor:
    """Rows [n, width] as the centred and rotated residual stream has them."""
    return residual.of_rows(rows - rows.mean(dim=1, keepdim=True))


def write_to_stream(linear: nn.Linear, residual: ResidualRotation) -> None:
    """Let a map with a bias give rows of the stream."""
    linear.weight.data = as_stream(linear.weight.T, residual).T.contiguous()
    linear.bias.data = as_stream(linear.bias[None], residual)[0]


def read_from_stream(
    norm: nn.LayerNorm, residual: ResidualRotation, *linears: nn.Linear
) -> nn.RMSNorm:
    """Let maps with biases take the stream's rows; the norm to use in the place of `norm`."""
    for linear in linears:
        linear.bias.data = linear.bias + linear.weight @ norm.bias
        linear.weight.data = residual.of_rows(linear.weight * norm.weight)
    return plain_norm(norm)


def plain_norm(norm: nn.LayerNorm) -> nn.RMSNorm:
    """An RMSNorm of the same width and epsilon, without weights of its own."""
    return nn.RMSNorm(norm.normalized_shape, norm.eps).requires_grad_(False)


def rotate_vision_block(block: VisionBlock, residual: ResidualRotation) -> None:
    """Rewrite a block for a centred and rotated stream; its function stays the same.

    Afterwards its norms are RMSNorms, and `ffn_down` may be a `HadamardInput`.
    """
    attention = (block.attn_q, block.attn_k, block.attn_v)
    block.set_submodule("ln1", read_from_stream(block.ln1, residual, *attention))
    block.set_submodule("ln2", read_from_stream(block.ln2, residual, block.ffn_up))
    for linear in (block.attn_out, block.ffn_down):
        write_to_stream(linear, residual)
    turn_heads(block.attn_v, block.attn_out, block.head_width)
    turn_input(block, "ffn_down")


def stream_map(norm: nn.LayerNorm, residual: ResidualRotation) -> nn.Linear:
    """What a LayerNorm does behind its division, as a map to rows of the stream."""
    linear = nn.Linear(len(norm.weight), len(norm.weight))
    linear.weight.data = as_stream(torch.diag(norm.weight), residual).T.contiguous()
    linear.bias.data = as_stream(norm.bias[None], residual)[0]
    return linear.requires_grad_(False)


def cells_from_stream(weight: Tensor, norm: nn.LayerNorm, residual: ResidualRotation) -> nn.Linear:
    """A map of n patches' LayerNorms, channel outermost, for normed rows of the stream instead.

    weight: [out, width * n].
    """
    out, width = len(weight), len(norm.weight)
    channels = weight.view(out, width, -1)
    linear = nn.Linear(weight.shape[1], out)
    linear.bias.data = torch.einsum("owp,w->o", channels, norm.bias)
    by_patch = (channels * norm.weight[:, None]).transpose(1, 2).reshape(-1, width)
    turned = residual.of_rows(by_patch).view(out, -1, width)
    linear.weight.data = turned.transpose(1, 2).reshape(weight.shape)
    return linear.requires_grad_(False)
