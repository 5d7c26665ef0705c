"""A model's weights as its file gives them, in float32, with nothing rotated or rounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Block, norm_embeddings
from astrai_cli.models.draft import BlockDraft
from astrai_cli.models.source import ModelSource
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.vision import VisionBlock
from astrai_cli.models.vision_spec import VisionSpec
from backends.cpu.modules import CentredNorm, Head, RowNorm, use_row_norms


class Float32Text:
    """A text model's weights."""

    def __init__(self, source: ModelSource) -> None:
        self._spec = source.spec

    def block(self, block: Block) -> Block:
        use_row_norms(block)
        return block

    def head(self, gains: Tensor, rows: Iterable[Tensor]) -> Head:
        norm = nn.RMSNorm(self._spec.width, self._spec.norm_eps)
        norm.weight.data = gains
        return Head(RowNorm(norm), _linear(torch.cat(list(rows))), self._spec.logit_cap)

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        return _table(norm_embeddings(part, self._spec) for part in rows)


class Float32Vision:
    """A vision tower's weights."""

    def __init__(self, _spec: VisionSpec, _text: ModelSpec) -> None:
        """Nothing depends on either model."""

    def enter(self, norm: nn.LayerNorm) -> nn.Module:
        return CentredNorm(norm)

    def block(self, block: VisionBlock) -> VisionBlock:
        use_row_norms(block)
        return block

    def leave(self, norm: nn.LayerNorm) -> nn.Module:
        return CentredNorm(norm)

    def projector(self, weights: Sequence[Tensor], _norm: nn.LayerNorm) -> list[nn.Module]:
        return [_linear(weight) for weight in weights]


class Float32Draft:
    """A block draft's weights, with its copies of the target's table and head."""

    def put_into(self, draft: BlockDraft) -> None:
        use_row_norms(draft)

    def head(self, rows: Iterable[Tensor]) -> nn.Module:
        return _linear(torch.cat(list(rows)))

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        return _table(rows)


def _linear(weight: Tensor) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _table(rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """With scales of one."""
    table = torch.cat(list(rows))
    return table, torch.ones(len(table), 1, dtype=torch.float16)
