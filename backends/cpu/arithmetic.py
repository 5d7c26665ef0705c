"""What an export makes of weights: the one place that chooses between int8 and float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.decoder import Block
from astrai_cli.models.draft import BlockDraft
from astrai_cli.models.source import ModelSource
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.vision import VisionBlock
from astrai_cli.models.vision_spec import VisionSpec
from backends.cpu.float32 import Float32Draft, Float32Text, Float32Vision
from backends.cpu.int8 import Int8Draft, Int8Text, Int8Vision, stream_rotation


class TextWeights(Protocol):
    """A text model's weights on their way into a program: its blocks in order, then its head."""

    def block(self, block: Block) -> Block:
        """A float32 block as XNNPACK runs it; the same one, altered."""

    def head(self, gains: Tensor, rows: Iterable[Tensor]) -> nn.Module:
        """From h [R, width] to logits. gains: the last norm's weights, with the scale of logits
        divided by their cap; rows: of the matrix [vocabulary, width], some at a time.
        """

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Table and scales for `operators.embed`, of the embedding's rows [n, width]."""


class VisionWeights(Protocol):
    """A vision tower's weights on their way into a program."""

    def enter(self, norm: nn.LayerNorm) -> nn.Module:
        """From embedded patches [P, width], not yet normed, to the first block."""

    def block(self, block: VisionBlock) -> VisionBlock:
        """A float32 block as XNNPACK runs it; the same one, altered."""

    def leave(self, norm: nn.LayerNorm) -> nn.Module:
        """From the last block to what cells are made of."""

    def projector(self, weights: Sequence[Tensor], norm: nn.LayerNorm) -> Sequence[nn.Module]:
        """The maps from cells on; norm: the one that `leave` was given."""


class DraftWeights(Protocol):
    """A block draft's weights on their way into a program."""

    def put_into(self, draft: BlockDraft) -> None:
        """Make a float32 draft what XNNPACK runs."""

    def head(self, rows: Iterable[Tensor]) -> nn.Module:
        """The target's matrix [vocabulary, width], whose rows come some at a time."""

    def embedding(self, rows: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """As of TextWeights; the draft takes rows as the target's table has them."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a program computes with.

    turns_stream: whether a text model's residual stream is in a basis of the export's own.
    details: what the manifest notes.
    """

    text: Callable[[ModelSource], TextWeights]
    vision: Callable[[VisionSpec, ModelSpec], VisionWeights]
    draft: Callable[[], DraftWeights]
    turns_stream: Callable[[ModelSpec], bool]
    details: Mapping[str, str]


_INT8 = Arithmetic(
    Int8Text, Int8Vision, Int8Draft, lambda spec: stream_rotation(spec) is not None, {}
)
_FLOAT32 = Arithmetic(
    Float32Text,
    Float32Vision,
    Float32Draft,
    lambda _spec: False,
    {"activation_dtype": "float32"},
)


def arithmetic(activation_dtype: str | None) -> Arithmetic:
    """What the option asks for: int8 when left out. Raises InvalidInputError."""
    if activation_dtype is None:
        return _INT8
    if activation_dtype != "float32":
        raise InvalidInputError(
            f"activation_dtype is {activation_dtype}; the cpu backend exports float32, "
            "and int8 when it is left out",
            param="activation_dtype",
        )
    return _FLOAT32
