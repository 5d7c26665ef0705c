"""Steps of the sizes that gpu_check times."""

from __future__ import annotations

import numpy as np

from backends.base import Draw, SequenceStep, Step
from backends.drafting import DraftOwner, DraftStep

PAGE_SIZE = 32


def decode_step(n: int, context: int) -> Step:
    """The last token of each of n contexts, drawn."""
    token = np.ones(1, dtype=np.int32)
    draws = (Draw(0.0),)
    return Step(
        [SequenceStep(token, context - 1, own, 1, draws=draws) for own in pages(n, context)],
        PAGE_SIZE,
    )


def prefill_step(n: int, n_tokens: int) -> Step:
    """n prompts of so many tokens each, and what follows them drawn."""
    tokens = np.ones(n_tokens, dtype=np.int32)
    draws = (Draw(0.0),)
    return Step(
        [SequenceStep(tokens, 0, own, 1, draws=draws) for own in pages(n, n_tokens)], PAGE_SIZE
    )


def draft_step(n: int, context: int, block: int) -> DraftStep:
    """A block behind each of n contexts."""
    owners = [DraftOwner(1, context - 1, own) for own in pages(n, context)]
    return DraftStep(owners, block, PAGE_SIZE)


def pages(n: int, cells: int) -> np.ndarray:
    """Pages of n sequences of so many cells: int32 [n, pages]."""
    return np.arange(n * (padded(cells) // PAGE_SIZE), dtype=np.int32).reshape(n, -1)


def padded(cells: int) -> int:
    """Cells of whole pages."""
    return -(-cells // PAGE_SIZE) * PAGE_SIZE
