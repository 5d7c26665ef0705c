"""The block draft (DFlash) in PyTorch, over packed tokens.

Modules carry the names of GGUF tensors, as those of the decoder do. Keys and values of the
context are kept by whoever runs the draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Attend, Block, Rotation, split_heads
from astrai_cli.models.draft_spec import DraftFile, DraftSpec
from astrai_cli.models.rope import rope_frequencies


class Taps:
    """Takes the outputs of some layers of the target, in a step; a `Tap`."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = layers
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, layer: int, h: Tensor) -> None:
        if layer in self._layers:
            self._outputs[layer] = h

    def take(self) -> Tensor:
        """The layers' outputs side by side, [T, layers * width]; once for each step."""
        taken = torch.cat([self._outputs[layer] for layer in self._layers], dim=1)
        self._outputs.clear()
        return taken


class _Encoder(nn.Module):
    """`enc.output_norm`: of what the taps become."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.output_norm = nn.RMSNorm(spec.layers.width, spec.layers.norm_eps)


class BlockDraft(nn.Module):
    """Proposes the tokens of a block behind the last accepted one, its anchor.

    A token of the context is one row, made of the outputs of some layers of the target.
    Each layer has keys and values of the context rows and of the block's own, from the same
    matrices, and a block's rows see each other and the context, without order.
    """

    rope_frequencies: Tensor

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        layers = spec.layers
        self.spec = spec
        self.fc = nn.Linear(len(spec.taps) * layers.width, layers.width, bias=False)
        self.enc = _Encoder(spec)
        self.blk = nn.ModuleList(Block(layers, layer) for layer in range(layers.n_layers))
        self.output_norm = nn.RMSNorm(layers.width, layers.norm_eps)
        # from_numpy stays real where everything else is built on the meta device.
        frequencies = torch.from_numpy(rope_frequencies(layers.rope))
        self.register_buffer("rope_frequencies", frequencies, persistent=False)

    def context(self, taps: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each layer's keys and values [T, H_kv, D] of tokens of the context.

        taps: float32 [T, taps * width], the outputs of the tapped layers side by side;
        positions: int64 [T].
        """
        rotate = Rotation.at(positions, self.rope_frequencies)
        row = self.enc.output_norm(self.fc(taps))
        for block in self.blk:
            assert isinstance(block, Block)
            k, v = block.project_context(row)
            k, v = (split_heads(x, self.spec.layers.head_width) for x in (k, v))
            yield rotate(k).squeeze(2), v.squeeze(2)

    def forward(self, h: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """What the target's head takes, float32 [T, width], for the rows of some blocks.

        h: float32 [T, width], embeddings as the target's table has them, of anchors and
        masks; positions: int64 [T]. attend: sees the context and the row's own block, and
        keeps nothing.
        """
        rotate = Rotation.at(positions, self.rope_frequencies)
        for block in self.blk:
            h = block(h, positions, rotate, attend)
        output: Tensor = self.output_norm(h)
        return output


def load_draft(file: DraftFile) -> BlockDraft:
    """A draft with float32 weights. Raises ModelFileError for values that are not finite."""
    with torch.device("meta"):
        draft = BlockDraft(file.spec)
    state = {name: torch.from_numpy(file.get(name).copy()) for name in draft.state_dict()}
    draft.load_state_dict(state, assign=True)
    return draft.requires_grad_(False).eval()
