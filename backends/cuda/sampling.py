"""Draws tokens on the device, as `astrai_cli.engine.sampling` does on the host.

Every stage is the host's, and sums are float64 where the host's are. So the tokens are the
same unless a draw falls within some 1e-7 of the edge between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import numpy as np
import torch
from torch import Tensor

from backends.base import Draw
from backends.cuda.inputs import upload

UNUSABLE = -1
# Rows are sorted this far; those that may need more are sorted whole.
_FEW = 1024


def draw_tokens(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One id for each row of logits float32 [B, vocabulary]: int32 [B].

    UNUSABLE for rows with NaN or without a finite maximum. Waits for nothing.
    """
    logits = _change(logits, draws)
    highest = logits.amax(dim=1, keepdim=True)
    ids = torch.arange(logits.shape[1], device=logits.device)
    # The first of equal ones, which argmax does not promise.
    tokens = torch.where(logits == highest, ids, len(ids)).amin(dim=1)
    if any(draw.temperature > 0 for draw in draws):
        parameters = _Parameters(draws, logits.device)
        drawn = _draw(logits - highest, draws, parameters)
        tokens = torch.where(parameters.is_random[:, 0], drawn, tokens)
    return torch.where(highest[:, 0].isfinite(), tokens, UNUSABLE).to(torch.int32)


class _Parameters:
    """Those of all rows, each float64 [B, 1] on the device."""

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        columns = [
            (
                each.temperature,
                each.temperature or 1.0,
                each.top_k,
                each.top_p,
                log(each.min_p) if each.min_p else -inf,
                each.uniform,
            )
            for each in draws
        ]
        values = upload(np.array(columns, dtype=np.float64).T[:, :, None].copy(), device)
        given, temperature, self.top_k, self.top_p, least, self.uniform = values
        self.is_random = given > 0
        self.temperature = temperature.float()
        self.least = least.float()


def _change(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The logits after the draws' changes: number i of all rows together, in their order."""
    if not any(draw.changes for draw in draws):
        return logits
    logits = logits.clone()
    flat = logits.view(-1)
    for stage in range(max(len(draw.changes) for draw in draws)):
        rows = [
            (row, draw.changes[stage])
            for row, draw in enumerate(draws)
            if len(draw.changes) > stage
        ]
        places = [row * logits.shape[1] + change.ids for row, change in rows]
        factors = [np.full(len(change.ids), change.penalty, np.float32) for _, change in rows]
        at = upload(np.concatenate(places), logits.device)
        penalty = upload(np.concatenate(factors), logits.device)
        bias = upload(np.concatenate([change.bias for _, change in rows]), logits.device)
        x = flat[at]
        flat[at] = torch.where(x > 0, x / penalty, x * penalty) + bias
    return logits


def _draw(logits: Tensor, draws: Sequence[Draw], parameters: _Parameters) -> Tensor:
    """Ids int64 [B] for rows [B, vocabulary] whose largest is 0."""
    x = logits / parameters.temperature
    vocabulary = x.shape[1]
    keep = x >= parameters.least
    if any(draw.top_k < vocabulary or draw.top_p < 1 for draw in draws):
        keep &= _likeliest(x, _depth(draws, vocabulary), parameters)
    weights = torch.where(keep, x.exp(), 0.0)
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    chosen = (cumulative <= cumulative[:, -1:] * parameters.uniform).sum(dim=1)
    # Rounding may leave the target at the total itself: then it is the last token.
    ids = torch.arange(vocabulary, device=x.device)
    return torch.minimum(chosen, torch.where(keep, ids, 0).amax(dim=1))


def _depth(draws: Sequence[Draw], vocabulary: int) -> int:
    """How far rows must be sorted for every row to find its last likely token."""
    limited = [draw.top_k for draw in draws if draw.top_k < vocabulary]
    whole = any(draw.top_k >= vocabulary and draw.top_p < 1 for draw in draws)
    return vocabulary if whole or max(limited) > _FEW else max(limited)


def _likeliest(x: Tensor, depth: int, parameters: _Parameters) -> Tensor:
    """Which tokens top_k and top_p leave, of equal ones those with lower ids: [B, vocabulary]."""
    vocabulary = x.shape[1]
    best = x.sort(dim=1, descending=True).values if depth == vocabulary else x.topk(depth).values
    counts = parameters.top_k.clamp(max=vocabulary)
    inside = torch.arange(depth, device=x.device) < counts
    reached = torch.where(inside, best.exp(), 0.0).cumsum(dim=1, dtype=torch.float64)
    nucleus = (reached < parameters.top_p * reached[:, -1:]).sum(dim=1, keepdim=True) + 1
    sizes = torch.where(parameters.top_p < 1, torch.minimum(nucleus, counts), counts).long()
    # Rows that keep all are sorted less far than that, where others are what it is for.
    threshold = best.gather(1, (sizes - 1).clamp(max=depth - 1))
    equal = x == threshold
    room = sizes - (x > threshold).sum(dim=1, keepdim=True)
    kept = (x > threshold) | (equal & (equal.cumsum(dim=1) <= room))
    return kept | (sizes >= vocabulary)
