"""Steps that each break one rule, beside a text whose first 20 tokens have run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from step_texts import CELLS, Text, random_tokens
from tiny_models import VOCABULARY

from backends.base import SequenceStep, Step

PAGE_SIZE = 4
MAX_CONTEXT = 128
HISTORY = Text(random_tokens(30), np.arange(100, 132, dtype=np.int32))

_pages = HISTORY.pages
_good = SequenceStep(random_tokens(3, seed=1), 20, _pages)
_fresh = SequenceStep(random_tokens(3, seed=2), 0, np.array([7], dtype=np.int32))


def _steps(*sequences: SequenceStep) -> Step:
    return Step(sequences, PAGE_SIZE)


def _one(**changes: Any) -> Step:
    return _steps(replace(_good, **changes))


def _token(value: int) -> Step:
    return _one(tokens=np.array([1, value, 2], dtype=np.int32))


def _last_page(value: int) -> Step:
    """The page that the step's positions 20 to 22 go to."""
    return _one(pages=np.append(_pages[:5], value).astype(np.int32))


BAD_STEPS: dict[str, tuple[Step, str]] = {
    "no sequences": (_steps(), "sequence"),
    "no tokens": (_one(tokens=_good.tokens[:0], logit_rows=0), "no tokens"),
    "page size 0": (Step([_good], 0), "page size 0"),
    "token over the vocabulary": (_token(VOCABULARY), f"{VOCABULARY} .*vocabulary"),
    "token below 0": (_token(-1), "-1 .*vocabulary"),
    "start below 0": (_one(start=-1), "-1.* below 0"),
    "over the context": (_one(start=MAX_CONTEXT - 2), f"context of {MAX_CONTEXT}"),
    "too few pages": (_one(pages=_pages[:5]), "5 pages .* 6"),
    "page over the cells": (_last_page(CELLS // PAGE_SIZE), f"page 256 .* {CELLS} cells"),
    "page below 0": (_last_page(-1), "page -1 "),
    "page read twice": (_one(pages=_pages[[0, 0, 2, 3, 4, 5]]), "same page twice"),
    "page read and written": (_last_page(_pages[0]), "page 100 .*twice"),
    "page written by two": (_steps(_fresh, _good, _fresh), "page 7 .*twice"),
    "page written by one, read by another": (
        _steps(_good, replace(_fresh, pages=_pages[2:3])),
        "page 102 .*twice",
    ),
    "rows below 0": (_one(logit_rows=-1), "-1 rows"),
    "rows over the tokens": (_one(logit_rows=4), "4 rows"),
    "only the second is wrong": (_steps(_good, replace(_fresh, start=-1)), "-1.* below 0"),
}
