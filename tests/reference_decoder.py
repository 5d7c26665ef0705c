"""A decoder in numpy and float64: whole sequences, no cache, nothing shared with what it checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.weights import Weights

Array = NDArray[np.float64]


def relative_error(actual: ArrayLike, expected: ArrayLike) -> float:
    """The largest of the rows' ||actual - expected|| / ||expected||; 0 for no rows."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if not len(actual):
        return 0.0
    error = np.linalg.norm(actual - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(error.max())


class ReferenceDecoder:
    """The logits of one model file, computed from its spec and dequantized weights."""

    def __init__(self, path: Path) -> None:
        with ModelFile.open(path) as model_file:
            self.spec: ModelSpec = model_file.spec
            weights = Weights(model_file)
            self._weights = {name: weights.get(name).astype(np.float64) for name in weights.shapes}
        self._known: dict[tuple[int, ...], Array] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        """float64 [T, vocabulary] of a sequence that starts at position 0."""
        key = tuple(int(token) for token in tokens)
        if key not in self._known:
            self._known[key] = self._forward(np.array(key))
        return self._known[key]

    def _forward(self, tokens: NDArray[np.int64]) -> Array:
        spec, w = self.spec, self._weights
        h = w["token_embd.weight"][tokens]
        if spec.embedding_norm:
            h = self._norm(h, 1.0)
        for layer, window in enumerate(spec.windows):
            prefix = f"blk.{layer}."
            x = self._norm(h, w[prefix + "attn_norm.weight"])
            attended = self._attention(x, prefix, window)
            if spec.gated_attention:
                attended = attended / (1 + np.exp(-(x @ w[prefix + "attn_gate.weight"].T)))
            attended = attended @ w[prefix + "attn_output.weight"].T
            h = h + self._post_norm(attended, prefix + "post_attention_norm.weight")
            x = self._norm(h, w[prefix + "ffn_norm.weight"])
            gate = x @ w[prefix + "ffn_gate.weight"].T
            up = x @ w[prefix + "ffn_up.weight"].T
            down = (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "ffn_down.weight"].T
            h = h + self._post_norm(down, prefix + "post_ffw_norm.weight")
        head = w["token_embd.weight" if spec.tied_head else "output.weight"]
        logits = self._norm(h, w["output_norm.weight"]) @ head.T * spec.logit_scale
        cap = spec.logit_cap
        return logits if cap is None else cap * np.tanh(logits / cap)

    def _attention(self, x: Array, prefix: str, window: int | None) -> Array:
        spec = self.spec
        q = self._heads(x, prefix + "attn_q", norm=spec.qk_norm)
        k = self._heads(x, prefix + "attn_k", norm=spec.qk_norm)
        if window is not None or not spec.windows_rotate_alone:
            q, k = self._rotate(q), self._rotate(k)
        v = self._heads(x, prefix + "attn_v", norm=False)
        distance = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
        hidden = (distance < 0) | (distance >= (window or len(x)))
        outputs = []
        for head in range(spec.n_heads):
            kv_head = head * spec.n_kv_heads // spec.n_heads
            scores = q[:, head] @ k[:, kv_head].T / np.sqrt(spec.head_width)
            scores[hidden] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(shares / shares.sum(axis=1, keepdims=True) @ v[:, kv_head])
        return np.concatenate(outputs, axis=1)

    def _heads(self, x: Array, name: str, *, norm: bool) -> Array:
        """Project x [T, width] to heads [T, heads, head width]."""
        w = self._weights
        y = x @ w[name + ".weight"].T
        if name + ".bias" in w:
            y = y + w[name + ".bias"]
        y = y.reshape(len(x), -1, self.spec.head_width)
        return self._norm(y, w[name + "_norm.weight"]) if norm else y

    def _norm(self, x: Array, weight: Array | float, eps: float | None = None) -> Array:
        eps = self.spec.norm_eps if eps is None else eps
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight

    def _post_norm(self, x: Array, name: str) -> Array:
        eps = self.spec.post_norm_eps
        return x if eps is None else self._norm(x, self._weights[name], eps)

    def _rotate(self, x: Array) -> Array:
        """Turn components i and i + dimension / 2 together, as one complex number."""
        rope = self.spec.rope
        half = rope.dimension // 2
        speed = rope.base ** (-2 * np.arange(half) / rope.dimension) / rope.scale
        if rope.factors is not None:
            speed = speed / np.array(rope.factors)
        turns = np.exp(1j * np.outer(np.arange(len(x)), speed))[:, None, :]
        turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * turns
        return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)
