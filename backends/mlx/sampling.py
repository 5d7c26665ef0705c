"""Draws tokens on the device, as `astrai_cli.engine.sampling` does on the host.

Every step is the host's, in float32 where the host sums in float64. So the tokens are the
same unless a draw falls within some 1e-6 of the edge between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import mlx.core as mx
import numpy as np

from backends.base import Draw

# Rows are sorted this far: what is beyond, hosts draw.
MAX_TOP_K = 1024
UNUSABLE = -1


def draw_tokens(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """One id for each row of logits float32 [B, vocabulary]: int32 [B], not evaluated.

    UNUSABLE for rows with NaN or without a finite maximum.
    """
    likeliest = mx.argmax(logits, axis=-1)
    highest = mx.take_along_axis(logits, likeliest[:, None], axis=-1)
    usable = mx.isfinite(highest[:, 0]) & ~mx.any(mx.isnan(logits), axis=-1)
    tokens = likeliest.astype(mx.int32)
    random = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if random:
        rows = mx.array(random)
        drawn = _draw((logits - highest)[rows], [draws[row] for row in random])
        tokens[rows] = drawn
    return mx.where(usable, tokens, UNUSABLE)


def _draw(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Ids int32 [B] for rows [B, vocabulary] whose largest is 0."""
    x = logits / _column([draw.temperature for draw in draws])
    vocabulary = x.shape[1]
    top_k = [min(draw.top_k, vocabulary) for draw in draws]
    best = -mx.sort(-mx.topk(x, max(top_k), axis=-1), axis=-1)
    keep = _largest(x, best, _sizes(best, top_k, [draw.top_p for draw in draws]))
    keep &= x >= _column([log(draw.min_p) if draw.min_p else -inf for draw in draws])
    cumulative = mx.cumsum(mx.where(keep, mx.exp(x), 0.0), axis=-1)
    target = cumulative[:, -1:] * _column([draw.uniform for draw in draws])
    chosen = mx.sum(cumulative <= target, axis=-1)
    # Rounding may leave the target at the total itself: then it is the last token.
    last = mx.max(mx.where(keep, mx.arange(vocabulary), 0), axis=-1)
    return mx.minimum(chosen, last).astype(mx.int32)


def _sizes(best: mx.array, top_k: Sequence[int], top_p: Sequence[float]) -> mx.array:
    """How many of the largest stay: top_k, or the fewest that reach top_p: int32 [B, 1]."""
    counts = mx.array(list(top_k))[:, None]
    weights = mx.where(mx.arange(best.shape[1]) < counts, mx.exp(best), 0.0)
    shares = _column(top_p)
    reached = mx.cumsum(weights, axis=-1)
    nucleus = mx.sum(reached < shares * reached[:, -1:], axis=-1, keepdims=True) + 1
    return mx.where(shares < 1, mx.minimum(nucleus, counts), counts)


def _largest(x: mx.array, best: mx.array, sizes: mx.array) -> mx.array:
    """Which are the largest of each row, of equal ones those with lower ids: bool [B, n]."""
    threshold = mx.take_along_axis(best, sizes - 1, axis=-1)
    above = x > threshold
    equal = x == threshold
    room = sizes - mx.sum(above, axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(np.array(values, dtype=np.float32)[:, None])
