"""Log probabilities of tokens."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.request import TokenLogprob
from astrai_cli.errors import InvalidInputError

MAX_TOP_LOGPROBS = 20
LOWEST = -9999.0
"""Stands for everything below it: JSON has no infinity."""


def check_logprobs(n_top: int | None) -> None:
    """Raises InvalidInputError for more of the likeliest tokens than are told, or fewer than 0."""
    if n_top is not None and not 0 <= n_top <= MAX_TOP_LOGPROBS:
        raise InvalidInputError(
            f"logprobs is {n_top}; it must be 0 to {MAX_TOP_LOGPROBS}", param="logprobs"
        )


def token_logprob(logits: NDArray[np.float32], token_id: int, n_top: int) -> TokenLogprob:
    """The log-softmax of the model's own logits [vocabulary]: of a token, and the n_top likeliest.

    The likeliest come first, of equally likely ones the lower ids. The logits' largest
    must be finite; the sum is taken in float64.
    """
    shifted = logits - logits.max()
    log_total = log(np.exp(shifted).sum(dtype=np.float64))

    def logprob(index: int) -> float:
        return max(LOWEST, float(shifted[index]) - log_total)

    top = tuple((index, logprob(index)) for index in _largest(shifted, n_top))
    return TokenLogprob(token_id, logprob(token_id), top)


def _largest(values: NDArray[np.float32], n: int) -> list[int]:
    if not n:
        return []
    n = min(n, len(values))
    # Everything that may be among them, in ascending order of ids, which a stable sort keeps.
    likely = np.flatnonzero(values >= np.partition(values, -n)[-n])
    order = np.argsort(-values[likely], kind="stable")[:n]
    return [int(index) for index in likely[order]]
