"""One of mlx-lm's models over packed steps: every token a batch entry of its own.

mlx-lm computes a batch of sequences of equal length. Here each token is a sequence of
length 1 at its own position, so that prompts and answers share every matrix product. Three
things are put in the model's way: caches that hand keys and values to the cells, attention
that reads them there, and an embedding and a head that know of image rows and of the rows
whose logits are wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from astrai_cli.errors import InvalidInputError
from backends.mlx.cells import CellPool, Group, Sight

# The device begins with these while Python still describes the layers behind them.
LAYERS_AT_ONCE = 8

_ATTENTION = "scaled_dot_product_attention"
_mlx_attention = base.scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A packed step on the device.

    tokens, positions, cells: int32 [T]. rows: int32 [R], whose logits are wanted.
    embedded: int32 [E], the places that `embeddings` [E, width] fill.
    """

    groups: Sequence[Group]
    tokens: mx.array
    positions: mx.array
    cells: mx.array
    rows: mx.array
    embedded: mx.array
    embeddings: mx.array


class _Mask:
    """What a layer's attention is told to mask: all but the window, None: all that follows."""

    def __init__(self, window: int | None) -> None:
        self.window = window


class PackedCache:
    """Stands for one layer's cache while a step runs."""

    def __init__(self, layer: int, window: int | None, model: PackedModel) -> None:
        self._layer = layer
        self._window = window
        self._model = model

    @property
    def offset(self) -> mx.array:
        """The position of each batch entry."""
        return self._model.step.positions

    def make_mask(
        self, n: int, return_array: bool = False, window_size: int | None = None
    ) -> _Mask:
        return _Mask(window_size or self._window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep [T, heads, 1, head width] each; attention takes from the cells what it needs."""
        model = self._model
        pool = model.pool
        pool.write(self._layer, model.step.cells, keys.squeeze(2), values.squeeze(2))
        if (self._layer + 1) % LAYERS_AT_ONCE == 0:
            mx.async_eval(pool.keys[self._layer], pool.values[self._layer])
        return keys, values

    def attend(
        self, queries: mx.array, scale: float, mask: _Mask | None, sinks: mx.array | None
    ) -> mx.array:
        """Attention of queries [T, heads, 1, head width]: the same shape."""
        window = self._window if mask is None else mask.window
        pool, model = self._model.pool, self._model
        keys, values = pool.keys[self._layer], pool.values[self._layer]
        outputs = []
        for group, sight in zip(model.step.groups, model.sights(window), strict=True):
            rows = queries[group.begin : group.end]
            attended = mx.fast.scaled_dot_product_attention(
                _by_sequence(rows, group.count),
                sight.of(keys),
                sight.of(values),
                scale=scale,
                mask=sight.mask,
                sinks=sinks,
            )
            outputs.append(attended.transpose(0, 2, 1, 3).reshape(rows.shape))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)


def _by_sequence(rows: mx.array, count: int) -> mx.array:
    """[B * count, heads, 1, head width] as [B, heads, count, head width]."""
    _, n_heads, _, width = rows.shape
    return rows.reshape(-1, count, n_heads, width).transpose(0, 2, 1, 3)


def _attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    *,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    if isinstance(cache, PackedCache):
        return cache.attend(queries, scale, mask, sinks)
    return _mlx_attention(queries, keys, values, cache, scale, mask, sinks)


class _Embedding(Module):
    """The model's embedding, with image rows in the places of tokens; may be its head too."""

    def __init__(self, inner: Module, model: PackedModel) -> None:
        super().__init__()
        self.inner = inner
        self._model = model

    def __call__(self, tokens: mx.array) -> mx.array:
        rows = self.inner(tokens)
        step = self._model.step
        if step.embedded.size:
            rows[step.embedded] = step.embeddings[:, None].astype(rows.dtype)
        return rows

    def as_linear(self, h: mx.array) -> mx.array:
        return self.inner.as_linear(h[self._model.step.rows])


class _Head(Module):
    """The model's head, for the rows whose logits are wanted."""

    def __init__(self, inner: Module, model: PackedModel) -> None:
        super().__init__()
        self.inner = inner
        self._model = model

    def __call__(self, h: mx.array) -> mx.array:
        return self.inner(h[self._model.step.rows])


class _Tap(Module):
    """The norm that a layer begins with; keeps what the layer before it gave."""

    def __init__(self, inner: Module, layer: int, model: PackedModel) -> None:
        super().__init__()
        self.inner = inner
        self._layer = layer
        self._model = model

    def __call__(self, h: mx.array) -> mx.array:
        self._model.tapped[self._layer] = h
        return self.inner(h)


class PackedModel:
    """A model of mlx-lm that runs packed steps over a pool of cells.

    pool: to be set before the first step. step: what runs now. tapped: what tapped layers
    gave in the last step, [T, 1, width] each.
    """

    pool: CellPool
    step: PackedRows

    def __init__(self, model: Module) -> None:
        """Take over a loaded model.

        Raises InvalidInputError for one whose caches are of other kinds than plain and
        rotating, or that is built in another way than mlx-lm's usual one.
        """
        self._model = model
        caches = make_prompt_cache(model)
        self._caches = [
            PackedCache(layer, _window(cache), self) for layer, cache in enumerate(caches)
        ]
        self._sights: dict[int | None, list[Sight]] = {}
        self.tapped: dict[int, mx.array] = {}
        _take_over_attention(model)
        (self._embedding,) = _wrap(model, "embed_tokens", _Embedding, self)
        self._head = next(iter(_wrap(model, "lm_head", _Head, self)), None)

    @property
    def n_layers(self) -> int:
        return len(self._caches)

    def __call__(self, step: PackedRows) -> mx.array:
        """Logits [R, vocabulary], not yet evaluated."""
        self.step = step
        self._sights = {}
        logits = self._model(step.tokens[:, None], cache=self._caches)
        return logits.squeeze(1)

    def tap(self, layers: Sequence[int]) -> None:
        """Keep what these layers give, none of them the last, from the next step on."""
        for layer in layers:
            following = self._model.layers[layer + 1]
            following.input_layernorm = _Tap(following.input_layernorm, layer, self)

    def embed(self, tokens: mx.array) -> mx.array:
        """Rows [T, width] of the embedding, as its table has them."""
        return self._embedding.inner(tokens)

    def head(self, h: mx.array) -> mx.array:
        """The head alone [..., vocabulary], without the scale and the cap of logits."""
        return self._embedding.inner.as_linear(h) if self._head is None else self._head.inner(h)

    def sights(self, window: int | None) -> list[Sight]:
        """What each group of the step sees in layers with that window."""
        if window not in self._sights:
            heads = self.pool.n_heads
            self._sights[window] = [group.sees(window, heads) for group in self.step.groups]
        return self._sights[window]


def _window(cache: Any) -> int | None:
    if type(cache) is KVCache:
        return None
    if type(cache) is RotatingKVCache and not cache.keep:
        return int(cache.max_size)
    raise InvalidInputError(
        f"the model keeps its state in a {type(cache).__name__}; "
        "the mlx backend has cells for plain and for sliding attention"
    )


def _take_over_attention(model: Module) -> None:
    """Let the model's modules call our attention, which serves other caches as before."""
    modules = {sys.modules[type(each).__module__] for each in model.modules()}
    users = [each for each in modules if hasattr(each, _ATTENTION)]
    if not users:
        raise InvalidInputError(f"mlx-lm's {type(model).__module__} has attention of its own kind")
    for user in users:
        setattr(user, _ATTENTION, _attention)


def _wrap(
    model: Module, name: str, kind: Callable[[Module, PackedModel], Module], packed: PackedModel
) -> list[Module]:
    """Put a module around every one of that name; those put there."""
    wrapped = []
    for parent in [each for each in model.modules() if name in each]:
        wrapped.append(kind(parent[name], packed))
        setattr(parent, name, wrapped[-1])
    return wrapped
