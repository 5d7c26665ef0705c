"""A model's float32 blocks over whole sequences, without a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Block, Rotation, norm_embeddings, scale_logits
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.loader import load_decoder
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.weights import Weights


@dataclass
class Blocks:
    """The parts of a decoder, to be changed one by one; `head` is never the embedding's own."""

    spec: ModelSpec
    embedding: Tensor
    blocks: list[Block]
    norm: nn.RMSNorm
    head: nn.Linear
    frequencies: Tensor

    @classmethod
    def load(cls, path: Path) -> Blocks:
        with ModelFile.open(path) as model_file:
            decoder = load_decoder(Weights(model_file))
        blocks = [block for block in decoder.blk if isinstance(block, Block)]
        decoder.output.weight = nn.Parameter(decoder.output.weight.clone(), requires_grad=False)
        return cls(
            decoder.spec,
            decoder.token_embd.weight,
            blocks,
            decoder.output_norm,
            decoder.output,
            decoder.rope_frequencies,
        )

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the final norm is given, [T, width], of a sequence that starts at position 0."""
        positions = torch.arange(len(tokens))
        rotation = Rotation.at(positions, self.frequencies)
        h = norm_embeddings(self.embedding[tokens], self.spec)
        for block in self.blocks:
            h = block(h, positions, rotation, self._attend)
        return h

    def logits(self, tokens: Tensor) -> Tensor:
        return scale_logits(self.head(self.norm(self.hidden(tokens))), self.spec)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, layer: int) -> Tensor:
        distance = positions[:, None] - positions
        output = nn.functional.scaled_dot_product_attention(
            *(x.permute(2, 1, 0, 3) for x in (q, k, v)),
            attn_mask=(distance >= 0) & (distance < (self.spec.windows[layer] or len(positions))),
            scale=self.spec.attention_scale,
            enable_gqa=True,
        )
        return output.permute(2, 1, 0, 3)


def inputs_of(modules: dict[str, nn.Module], run: Callable[[], object]) -> dict[str, Tensor]:
    """All rows each module was given while `run` ran, in float64."""
    rows: dict[str, list[Tensor]] = {name: [] for name in modules}
    hooks = [
        module.register_forward_pre_hook(
            lambda _module, args, name=name: rows[name].append(args[0].to(torch.float64))
        )
        for name, module in modules.items()
    ]
    run()
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in rows.items()}
