"""A decoder-only transformer in PyTorch, over packed tokens.

Modules carry the names of GGUF tensors, so that the state dict of a `Decoder` is
the list of tensors to read. Keys and values are kept by whoever runs the
decoder, behind the `Attend` hook.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from astrai_cli.models.rope import rope_frequencies
from astrai_cli.models.spec import ModelSpec

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""attend(q, k, v, positions, layer) -> output: keep this step's keys and values, then attend.

q is [T, H, 1, D], k and v are [T, H_kv, 1, D], already normed and rotated, every
token a batch entry of its own; positions is [T]; the output is [T, H, 1, D]. The
scale of the scores is `ModelSpec.attention_scale`. ExecuTorch's neutral operator
`kvcache::update_and_attend` fits behind it.
"""

Tap = Callable[[int, Tensor], None]
"""tap(layer, h): takes a layer's output [T, width]."""


def ignore_outputs(layer: int, h: Tensor) -> None:
    """A tap for nobody."""


class Rotation:
    """Half-split rotary embedding: component i turns with i + dimension / 2.

    angles: float32 [T, dimension / 2], those of each row.
    """

    def __init__(self, angles: Tensor) -> None:
        self.cos = angles.cos()[:, None, None, :]
        self.sin = angles.sin()[:, None, None, :]
        self.half = angles.shape[1]

    @classmethod
    def at(cls, positions: Tensor, frequencies: Tensor) -> Rotation:
        """By positions [T] times frequencies [dimension / 2]."""
        return cls(positions.to(torch.float32)[:, None] * frequencies)

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate the first 2 * half components of x [T, heads, 1, D]."""
        first = x[..., : self.half]
        second = x[..., self.half : 2 * self.half]
        rotated = (
            first * self.cos - second * self.sin,
            second * self.cos + first * self.sin,
        )
        rest = x[..., 2 * self.half :]
        return torch.cat((*rotated, rest) if rest.shape[-1] else rotated, dim=-1)


class Block(nn.Module):
    """One layer: grouped-query attention, then a SwiGLU feed-forward, each on a normed copy.

    By the spec a gate weighs what was attended to, and each sub-layer's output is
    normed once more before it is added.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_width = spec.head_width
        q_width = spec.n_heads * spec.head_width
        kv_width = spec.n_kv_heads * spec.head_width

        self.attn_norm = nn.RMSNorm(spec.width, spec.norm_eps)
        self.attn_q = nn.Linear(spec.width, q_width, bias=spec.qkv_bias)
        self.attn_k = nn.Linear(spec.width, kv_width, bias=spec.qkv_bias)
        self.attn_v = nn.Linear(spec.width, kv_width, bias=spec.qkv_bias)
        self.gated = spec.gated_attention
        if spec.gated_attention:
            self.attn_gate = nn.Linear(spec.width, q_width, bias=False)
        self.attn_output = nn.Linear(q_width, spec.width, bias=False)
        self.qk_norm = spec.qk_norm
        if spec.qk_norm:
            self.attn_q_norm = nn.RMSNorm(spec.head_width, spec.norm_eps)
            self.attn_k_norm = nn.RMSNorm(spec.head_width, spec.norm_eps)

        self.ffn_norm = nn.RMSNorm(spec.width, spec.norm_eps)
        self.ffn_gate = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.ffn_up = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.ffn_down = nn.Linear(spec.ffn_width, spec.width, bias=False)

        self.rotates = spec.rotates(layer)
        self.post_norms = spec.post_norm_eps is not None
        if spec.post_norm_eps is not None:
            self.post_attention_norm = nn.RMSNorm(spec.width, spec.post_norm_eps)
            self.post_ffw_norm = nn.RMSNorm(spec.width, spec.post_norm_eps)

    def project(self, h: Tensor) -> tuple[Tensor, ...]:
        """Queries [T, H * D], keys and values [T, H_kv * D] of h [T, width], not yet rotated.

        The first of the two halves of a layer; what lies between them is off the graph.
        A gated layer adds a fourth, [T, H * D] between 0 and 1, for `merge`.
        """
        x = self.attn_norm(h)
        q = self.attn_q(x)
        if self.qk_norm:
            q = self._norm_heads(self.attn_q_norm, q)
        k, v = self.project_context(x)
        return (q, k, v, self.attn_gate(x).sigmoid()) if self.gated else (q, k, v)

    def project_context(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [T, H_kv * D] of rows [T, width] that are normed already."""
        k = self.attn_k(x)
        if self.qk_norm:
            k = self._norm_heads(self.attn_k_norm, k)
        return k, self.attn_v(x)

    def merge(self, h: Tensor, attended: Tensor, gate: Tensor | None = None) -> Tensor:
        """The second half: h [T, width] after what its queries attended to [T, H * D].

        gate: what `project` gave as the fourth.
        """
        output = self.attn_output(attended if gate is None else attended * gate)
        h = h + (self.post_attention_norm(output) if self.post_norms else output)
        x = self.ffn_norm(h)
        output = self.ffn_down(nn.functional.silu(self.ffn_gate(x)) * self.ffn_up(x))
        merged: Tensor = h + (self.post_ffw_norm(output) if self.post_norms else output)
        return merged

    def forward(self, h: Tensor, positions: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        q, k, v, *gate = self.project(h)
        q, k, v = (split_heads(x, self.head_width) for x in (q, k, v))
        if self.rotates:
            q, k = rotate(q), rotate(k)
        attended = attend(q, k, v, positions, self.layer)
        return self.merge(h, attended.flatten(1), *gate)

    def _norm_heads(self, norm: nn.Module, x: Tensor) -> Tensor:
        normed: Tensor = norm(x.view(-1, x.shape[1] // self.head_width, self.head_width))
        return normed.view(-1, x.shape[1])


def split_heads(x: Tensor, head_width: int) -> Tensor:
    """[T, heads * D] as [T, heads, 1, D]."""
    return x.view(-1, x.shape[1] // head_width, 1, head_width)


def norm_embeddings(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Rows of the embedding [T, width] as the first block takes them."""
    if not spec.embedding_norm:
        return rows
    return nn.functional.rms_norm(rows, (spec.width,), None, spec.norm_eps)


def scale_logits(logits: Tensor, spec: ModelSpec) -> Tensor:
    """The head's output [R, vocabulary] with the spec's scale and soft cap."""
    if spec.logit_cap is None:
        return logits if spec.logit_scale == 1.0 else logits * spec.logit_scale
    return torch.tanh(logits * (spec.logit_scale / spec.logit_cap)) * spec.logit_cap


class Decoder(nn.Module):
    """The whole model: embedding, blocks, final norm and head.

    `output` is always a module of its own; with a tied head the loader gives it
    the embedding's storage.
    """

    rope_frequencies: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.token_embd = nn.Embedding(spec.vocab_size, spec.width)
        self.blk = nn.ModuleList(Block(spec, layer) for layer in range(spec.n_layers))
        self.output_norm = nn.RMSNorm(spec.width, spec.norm_eps)
        self.output = nn.Linear(spec.width, spec.vocab_size, bias=False)
        # from_numpy stays real where everything else is built on the meta device.
        frequencies = torch.from_numpy(rope_frequencies(spec.rope))
        self.register_buffer("rope_frequencies", frequencies, persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """What the blocks are given for tokens [T]: float32 [T, width]."""
        return norm_embeddings(self.token_embd(tokens), self.spec)

    def forward(
        self,
        h: Tensor,
        positions: Tensor,
        rows: Tensor,
        attend: Attend,
        tap: Tap = ignore_outputs,
    ) -> Tensor:
        """Logits float32 [R, vocabulary] of the chosen rows of a packed step.

        h: float32 [T, width], from `embed` or an image; positions: int64 [T], each row's
        position in its own sequence; rows: int64 [R], indices into T, gathered before
        the head. tap: is shown every layer's output.
        """
        rotate = Rotation.at(positions, self.rope_frequencies)
        for layer, block in enumerate(self.blk):
            h = block(h, positions, rotate, attend)
            tap(layer, h)
        return scale_logits(self.output(self.output_norm(h.index_select(0, rows))), self.spec)
