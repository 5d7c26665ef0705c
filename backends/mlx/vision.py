"""A vision tower in MLX; mlx-lm has none for this family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu
from numpy.typing import NDArray

from astrai_cli.errors import ArtifactError
from astrai_cli.models.vision_layout import PatchLayout, split_patches
from astrai_cli.models.vision_spec import (
    PATCH_EMBEDDING,
    POSITION_TABLE,
    VisionSpec,
    normalised,
    vision_tensors,
)
from backends.artifact_vision import VISION_NAME, read_positions

# Queries that attend at once: their scores against all patches are in memory.
QUERIES_AT_ONCE = 1024

Rows = NDArray[np.float32]


class VisionEncoder:
    """The tower of an artifact, loaded."""

    def __init__(self, folder: Path, spec: VisionSpec) -> None:
        """Raises ArtifactError."""
        self._spec = spec
        self._table = read_positions(folder, spec)
        self._weights = _load(folder / VISION_NAME, spec)

    def encode(self, pixels: NDArray[np.uint8]) -> Rows:
        """Embeddings [cells, text width] of a prepared image.

        Layers are evaluated one by one: a graph of all would hold what each computes.
        """
        spec = self._spec
        rows, columns = (size // spec.patch_size for size in pixels.shape[:2])
        layout = PatchLayout.of(rows, columns, spec)
        patches = split_patches(normalised(pixels, spec), spec)[layout.order]
        h = self._embed(patches, layout.positions(self._table))
        angles = mx.array(layout.angles(spec))
        for layer in range(spec.n_layers):
            groups = layout.groups(layer, spec)
            h = self._block(h, f"v.blk.{layer}", angles, groups.tolist())
            mx.eval(h)
        h = self._norm(h, "v.post_ln")
        cells = layout.merge(np.asarray(h.astype(mx.float32)), spec)
        projected = self._project(mx.array(cells).astype(h.dtype))
        mx.eval(projected)
        return np.asarray(projected)

    def _embed(self, patches: Rows, positions: Rows) -> mx.array:
        weight = self._weights[PATCH_EMBEDDING]
        inputs = mx.array(patches).astype(weight.dtype)
        h = inputs @ weight.reshape(weight.shape[0], -1).T
        return self._norm(h + mx.array(positions).astype(weight.dtype), "v.pre_ln")

    def _block(self, h: mx.array, name: str, angles: mx.array, groups: list[int]) -> mx.array:
        x = self._norm(h, f"{name}.ln1")
        q, k, v = (self._heads(self._linear(x, f"{name}.attn_{part}")) for part in ("q", "k", "v"))
        attended = _attend(_rotate(q, angles), _rotate(k, angles), v, groups)
        h = h + self._linear(attended, f"{name}.attn_out")
        x = self._norm(h, f"{name}.ln2")
        x = gelu(self._linear(x, f"{name}.ffn_up"))
        return h + self._linear(x, f"{name}.ffn_down")

    def _project(self, cells: mx.array) -> mx.array:
        first, second, last = (self._weights[f"mm.{index}.weight"].T for index in range(3))
        h = gelu(gelu(cells @ first) @ second) @ last
        return mx.fast.rms_norm(h.astype(mx.float32), None, self._spec.norm_eps)

    def _norm(self, x: mx.array, name: str) -> mx.array:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return mx.fast.layer_norm(x, weight, bias, self._spec.norm_eps)

    def _linear(self, x: mx.array, name: str) -> mx.array:
        return mx.addmm(self._weights[f"{name}.bias"], x, self._weights[f"{name}.weight"].T)

    def _heads(self, x: mx.array) -> mx.array:
        """[P, width] as [heads, P, head width]."""
        return x.reshape(len(x), self._spec.n_heads, -1).transpose(1, 0, 2)


def _rotate(x: mx.array, angles: mx.array) -> mx.array:
    """Turn component i of x [heads, P, head width] with i + half by angles [P, half]."""
    first, second = mx.split(x, 2, axis=-1)
    cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attend(q: mx.array, k: mx.array, v: mx.array, groups: list[int]) -> mx.array:
    """Attention of [heads, P, head width] within groups of patches: [P, width]."""
    outputs = [
        mx.fast.scaled_dot_product_attention(
            q[None, :, queries], k[None, :, seen], v[None, :, seen], scale=q.shape[2] ** -0.5
        )[0]
        for queries, seen in _parts(groups)
    ]
    return mx.concatenate(outputs, axis=1).transpose(1, 0, 2).flatten(1)


def _parts(groups: list[int]) -> Iterator[tuple[slice, slice]]:
    """Consecutive queries, and the patches that they see."""
    begin = 0
    for size in groups:
        seen = slice(begin, begin + size)
        for first in range(begin, seen.stop, QUERIES_AT_ONCE):
            yield slice(first, min(first + QUERIES_AT_ONCE, seen.stop)), seen
        begin = seen.stop


def _load(path: Path, spec: VisionSpec) -> dict[str, mx.array]:
    try:
        weights: dict[str, mx.array] = mx.load(str(path))  # type: ignore[assignment]  # by suffix
        mx.eval(weights)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(f"{path}: {error}") from error
    shapes = vision_tensors(spec)
    del shapes[POSITION_TABLE]
    for name, shape in shapes.items():
        found = weights[name].shape if name in weights else None
        if found != shape:
            raise ArtifactError(f"{path}: tensor {name!r} has the shape {found}, must be {shape}")
    return weights
