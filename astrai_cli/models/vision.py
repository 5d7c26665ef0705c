"""A vision tower in PyTorch: patches of one image become rows of the text model's width.

Modules carry the names of GGUF tensors, so that the state dict of a `VisionTower`
is the list of tensors to read.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Rotation, split_heads
from astrai_cli.models.source import VisionSource
from astrai_cli.models.vision_layout import PatchLayout
from astrai_cli.models.vision_spec import CHANNELS, VisionSpec


class VisionBlock(nn.Module):
    """Attention without a mask, then a GELU feed-forward, each on a normed copy."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.head_width = spec.head_width
        self.ln1 = nn.LayerNorm(spec.width, spec.norm_eps)
        self.attn_q = nn.Linear(spec.width, spec.width)
        self.attn_k = nn.Linear(spec.width, spec.width)
        self.attn_v = nn.Linear(spec.width, spec.width)
        self.attn_out = nn.Linear(spec.width, spec.width)
        self.ln2 = nn.LayerNorm(spec.width, spec.norm_eps)
        self.ffn_up = nn.Linear(spec.width, spec.ffn_width)
        self.ffn_down = nn.Linear(spec.ffn_width, spec.width)

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [P, width] of h [P, width], not yet rotated."""
        x = self.ln1(h)
        return self.attn_q(x), self.attn_k(x), self.attn_v(x)

    def merge(self, h: Tensor, attended: Tensor) -> Tensor:
        """The second half: h [P, width] after what its queries attended to, of the same shape."""
        h = h + self.attn_out(attended)
        output: Tensor = h + self.ffn_down(nn.functional.gelu(self.ffn_up(self.ln2(h))))
        return output

    def forward(self, h: Tensor, rotate: Rotation, groups: list[int]) -> Tensor:
        """h [P, width]; patches see those of their own group, whose sizes are `groups`."""
        q, k, v = (split_heads(x, self.head_width) for x in self.project(h))
        q, k = rotate(q).to(v), rotate(k).to(v)
        parts = zip(*(torch.split(x.squeeze(2), groups) for x in (q, k, v)), strict=True)
        return self.merge(h, torch.cat([_attend(*part) for part in parts]))


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[n, heads, D] each; [n, heads * D]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    output = nn.functional.scaled_dot_product_attention(q, k, v)
    return output[0].transpose(0, 1).flatten(1)


class _Encoder(nn.Module):
    """What precedes the projector; the tensors named `v.`."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        patch = spec.patch_size
        self.patch_embd = nn.Conv2d(CHANNELS, spec.width, patch, patch, bias=False)
        self.position_embd = nn.Embedding(spec.grid_side**2, spec.width)
        self.pre_ln = nn.LayerNorm(spec.width, spec.norm_eps)
        self.blk = nn.ModuleList(VisionBlock(spec) for _ in range(spec.n_layers))
        self.post_ln = nn.LayerNorm(spec.width, spec.norm_eps)


class VisionTower(nn.Module):
    """The whole tower and its projector, for one image at a time."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.v = _Encoder(spec)
        self.mm = nn.ModuleList(
            [
                nn.Linear(spec.merge**2 * spec.width, spec.projector_width, bias=False),
                nn.Linear(spec.projector_width, spec.projector_width, bias=False),
                nn.Linear(spec.projector_width, spec.text_width, bias=False),
            ]
        )

    def forward(self, image: Tensor) -> Tensor:
        """Embeddings float32 [cells, text width], in row order, of a prepared image.

        image: float32 [3, height, width], normalised, whole cells high and wide. All but the
        table of positions may be of another number type, and on another device.
        """
        rows, columns = (size // self.spec.patch_size for size in image.shape[1:])
        layout = PatchLayout.of(rows, columns, self.spec)
        weight = self.v.patch_embd.weight
        order = torch.from_numpy(layout.order).to(weight.device)
        h = self.v.patch_embd(image[None].to(weight))[0].flatten(1).T[order]
        table = self.v.position_embd.weight.numpy()
        h = self.v.pre_ln(h + torch.from_numpy(layout.positions(table)).to(weight))
        rotate = Rotation(torch.from_numpy(layout.angles(self.spec)).to(weight.device))
        for layer, block in enumerate(self.v.blk):
            h = block(h, rotate, layout.groups(layer, self.spec).tolist())
        cells = layout.merge(self.v.post_ln(h).float().cpu().numpy(), self.spec)
        return self._project(torch.from_numpy(cells).to(weight))

    def _project(self, h: Tensor) -> Tensor:
        first, second, last = self.mm
        h = last(nn.functional.gelu(second(nn.functional.gelu(first(h))))).float()
        return nn.functional.rms_norm(h, h.shape[1:], None, self.spec.norm_eps)


def load_vision_tower(source: VisionSource) -> VisionTower:
    """The tower with float32 weights.

    Raises ModelFileError for values that are not finite.
    """
    with torch.device("meta"):
        tower = VisionTower(source.spec)
    state = {
        name: torch.from_numpy(np.require(source.get(name), requirements="W"))
        for name in tower.state_dict()
    }
    tower.load_state_dict(state, assign=True)
    return tower.requires_grad_(False).eval()
