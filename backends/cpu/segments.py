"""What lies between the attentions of a decoder, each as one delegate runs it."""

from __future__ import annotations

from torch import Tensor, nn

from astrai_cli.models.decoder import Block


class FirstSegment(nn.Module):
    """Before the first attention."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, h: Tensor) -> tuple[Tensor, ...]:
        return self.block.project(h)


class MiddleSegment(nn.Module):
    """Between the attention of two layers."""

    def __init__(self, block: Block, following: Block) -> None:
        super().__init__()
        self.block = block
        self.following = following

    def forward(
        self, attended: Tensor, h: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        h = self.block.merge(h, attended, gate)
        q, k, v, *next_gate = self.following.project(h)
        return q, k, v, h, *next_gate


class LastSegment(nn.Module):
    """After the last attention."""

    def __init__(self, block: Block, head: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.head = head

    def forward(self, attended: Tensor, h: Tensor, gate: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.block.merge(h, attended, gate))
        return logits
