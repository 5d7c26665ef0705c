"""The decoder's blocks as a GPU runs them best: what lies around attention, each fused."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Attend, Block, Rotation, split_heads

# Blocks differ in their matrices' forms and in whether they rotate, and each kind is compiled.
_KINDS_OF_BLOCKS = 64


class DeviceBlock(nn.Module):
    """A block of `Decoder`, computing in its weights' number type."""

    def __init__(self, block: Block, *, compiled: bool) -> None:
        """compiled: by `torch.compile`, once for all blocks that are alike."""
        super().__init__()
        self.block = block
        self._before: Callable[..., list[Tensor]] = _before
        self._after: Callable[..., Tensor] = _after
        if compiled:
            torch._dynamo.config.recompile_limit = _KINDS_OF_BLOCKS
            self._before = torch.compile(_before, dynamic=True)
            self._after = torch.compile(_after, dynamic=True)

    def forward(self, h: Tensor, positions: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        q, k, v, *gate = self._before(self.block, h, rotate)
        attended = attend(q, k, v, positions, self.block.layer)
        return self._after(self.block, h, attended, *gate)


class Float32Head(nn.Module):
    """A head whose logits are float32, so that scale and cap are computed in it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.head(h)
        return logits.float()


def _before(block: Block, h: Tensor, rotate: Rotation) -> list[Tensor]:
    """What attention takes, and the gate where there is one."""
    q, k, v, *gate = block.project(h)
    q, k, v = (split_heads(x, block.head_width) for x in (q, k, v))
    if block.rotates:
        q, k = rotate(q).to(v), rotate(k).to(v)
    return [q, k, v, *gate]


def _after(block: Block, h: Tensor, attended: Tensor, *gate: Tensor) -> Tensor:
    return block.merge(h, attended.flatten(1).to(h), *gate)
