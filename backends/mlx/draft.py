"""A block draft in MLX; mlx-lm has none."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from astrai_cli.errors import ArtifactError
from astrai_cli.models.draft_spec import DraftSpec, draft_tensors
from backends.artifact_draft import DRAFT_NAME
from backends.drafting import DraftStep
from backends.mlx.cells import CellPool
from backends.mlx.packed import PackedModel


class MlxDraft:
    """The draft of an artifact, loaded; pool: the cells of its context."""

    pool: CellPool

    def __init__(self, folder: Path, spec: DraftSpec, dtype: mx.Dtype) -> None:
        """Raises ArtifactError."""
        self.spec = spec
        self._dtype = dtype
        self._weights = _load(folder / DRAFT_NAME, spec)
        self.allocate(0)

    @property
    def bytes_per_cell(self) -> int:
        return self.spec.layers.kv_values_per_token * self._dtype.size

    def allocate(self, cells: int) -> None:
        """Drop what was there. Not evaluated."""
        layers = self.spec.layers
        self.pool = CellPool(
            layers.n_layers, cells, layers.n_kv_heads, layers.head_width, self._dtype
        )

    def keep(self, target: PackedModel) -> None:
        """Give the tokens of the target's step their rows of the context. Not evaluated."""
        taps = mx.concatenate([target.tapped[layer] for layer in self.spec.taps], axis=-1)
        row = self._norm(self._linear(taps.squeeze(1), "fc"), "enc.output_norm")
        positions = target.step.positions
        for layer in range(self.spec.layers.n_layers):
            keys, values = self._keys_and_values(row, layer, positions)
            self.pool.write(layer, target.step.cells, keys.squeeze(2), values.squeeze(2))

    def propose(self, step: DraftStep, target: PackedModel) -> mx.array:
        """int32 [owners, block - 1], not evaluated."""
        proposing = self.hidden(step, target)[:, 1:]
        return mx.argmax(target.head(proposing), axis=-1).astype(mx.int32)

    def hidden(self, step: DraftStep, target: PackedModel) -> mx.array:
        """What the target's head takes: [owners, block, width], not evaluated."""
        tokens = np.full((len(step.owners), step.block), self.spec.mask_id, dtype=np.int32)
        tokens[:, 0] = [owner.anchor for owner in step.owners]
        starts = np.array([owner.start for owner in step.owners])
        positions = mx.array((starts[:, None] + np.arange(step.block)).reshape(-1))
        context = [mx.array(owner.context_cells(step.page_size)) for owner in step.owners]
        h = target.embed(mx.array(tokens.reshape(-1)))
        for layer in range(self.spec.layers.n_layers):
            h = self._block(h, layer, positions, context)
        return self._norm(h, "output_norm").reshape(*tokens.shape, -1)

    def _block(
        self, h: mx.array, layer: int, positions: mx.array, context: list[mx.array]
    ) -> mx.array:
        name, spec = f"blk.{layer}", self.spec.layers
        x = self._norm(h, f"{name}.attn_norm")
        queries = self._heads(self._linear(x, f"{name}.attn_q"), f"{name}.attn_q_norm")
        queries = self._rotate(queries, positions)
        keys, values = self._keys_and_values(x, layer, positions)
        block = len(h) // len(context)
        outputs = []
        for index, cells in enumerate(context):
            own = slice(index * block, (index + 1) * block)
            attended = mx.fast.scaled_dot_product_attention(
                _by_head(queries[own].squeeze(2)),
                _by_head(mx.concatenate([self.pool.keys[layer][cells], keys[own].squeeze(2)])),
                _by_head(mx.concatenate([self.pool.values[layer][cells], values[own].squeeze(2)])),
                scale=spec.attention_scale,
            )
            outputs.append(attended[0].transpose(1, 0, 2).reshape(block, -1))
        h = h + self._linear(mx.concatenate(outputs), f"{name}.attn_output")
        x = self._norm(h, f"{name}.ffn_norm")
        gate = self._linear(x, f"{name}.ffn_gate")
        inner = gate * mx.sigmoid(gate) * self._linear(x, f"{name}.ffn_up")
        return h + self._linear(inner, f"{name}.ffn_down")

    def _keys_and_values(
        self, x: mx.array, layer: int, positions: mx.array
    ) -> tuple[mx.array, mx.array]:
        """[T, heads, 1, head width] each, of rows [T, width]."""
        name = f"blk.{layer}"
        keys = self._heads(self._linear(x, f"{name}.attn_k"), f"{name}.attn_k_norm")
        values = self._linear(x, f"{name}.attn_v").reshape(keys.shape)
        return self._rotate(keys, positions), values

    def _heads(self, x: mx.array, norm: str) -> mx.array:
        """Rows [T, heads * head width] as [T, heads, 1, head width], each head normed."""
        return self._norm(x.reshape(len(x), -1, 1, self.spec.layers.head_width), norm)

    def _rotate(self, x: mx.array, positions: mx.array) -> mx.array:
        rope = self.spec.layers.rope
        return mx.fast.rope(
            x,
            rope.dimension,
            traditional=False,
            base=rope.base,
            scale=1 / rope.scale,
            offset=positions,
        )

    def _linear(self, x: mx.array, name: str) -> mx.array:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, x: mx.array, name: str) -> mx.array:
        return mx.fast.rms_norm(x, self._weights[f"{name}.weight"], self.spec.layers.norm_eps)


def _by_head(rows: mx.array) -> mx.array:
    """[L, heads, head width] as [1, heads, L, head width]."""
    return rows.transpose(1, 0, 2)[None]


def _load(path: Path, spec: DraftSpec) -> dict[str, mx.array]:
    try:
        weights = mx.load(str(path))
        mx.eval(weights)
    except (OSError, RuntimeError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be loaded: {error}") from error
    assert isinstance(weights, dict)
    for name, shape in draft_tensors(spec).items():
        if name not in weights or weights[name].shape != shape:
            raise ArtifactError(f"{path} has no tensor {name!r} of the shape {list(shape)}")
    return weights
