"""What a decoder is: the numbers that fix its shapes and its forward pass."""

from __future__ import annotations

from dataclasses import dataclass

MUSE_GLIMMER = "muse-glimmer"
"""The name of that architecture; its vision towers have it too."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the first `dimension` components of a head.

    `factors` divides the frequencies [dimension / 2] (Llama 3's scaling; the
    file's `rope_freqs.weight`); `scale` divides the positions (linear scaling).
    Weights are held in half-split order everywhere in astrai: component i
    rotates with i + dimension / 2. Loaders reorder formats that pair neighbours.
    """

    base: float
    dimension: int
    scale: float = 1.0
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer, as read from a model file's metadata."""

    architecture: str
    name: str
    n_layers: int
    width: int
    ffn_width: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeSpec
    tied_head: bool
    qkv_bias: bool
    qk_norm: bool
    # One entry a layer: the number of keys a query may see, itself included; None: all.
    windows: tuple[int | None, ...]
    # Only layers with a window rotate queries and keys; the others know no positions.
    windows_rotate_alone: bool = False
    # Embeddings pass an RMSNorm without weights.
    embedding_norm: bool = False
    # What the heads attended to is multiplied by a sigmoid gate, component by component.
    gated_attention: bool = False
    # The epsilon of the norms between a sub-layer's output and the residual; None: no such norms.
    post_norm_eps: float | None = None
    # logits = cap * tanh(head * scale / cap); without a cap head * scale.
    logit_scale: float = 1.0
    logit_cap: float | None = None

    @property
    def kv_values_per_token(self) -> int:
        """Key and value numbers one token adds to the cache, over all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_width

    def rotates(self, layer: int) -> bool:
        """Whether the layer turns queries and keys by their positions."""
        return not self.windows_rotate_alone or self.windows[layer] is not None

    @property
    def attention_scale(self) -> float:
        """What the scores of queries and keys are multiplied by: 1 / sqrt(head width)."""
        return float(self.head_width**-0.5)
