"""What schema work may cost: visits, depth, and seconds inside client patterns."""

from __future__ import annotations

import time
from typing import Any, cast

import regex

MAX_VISITS = 65_536
MAX_DEPTH = 150
REGEX_SECONDS = 0.1


class BudgetExhaustedError(Exception):
    """The work would cost more than it may; the message names the bound."""


class Budget:
    """Counts down the work of one preflight, or of one response's validation.

    A visit is one keyword checked, one nested value looked at or one value
    compared. All patterns together may search for REGEX_SECONDS of processor time.
    """

    __slots__ = ("_seconds", "depth", "visits")

    def __init__(self, visits: int = MAX_VISITS, regex_seconds: float = REGEX_SECONDS) -> None:
        self.visits = visits
        self.depth = 0
        self._seconds = regex_seconds

    def spend(self, visits: int = 1) -> None:
        """Raises BudgetExhaustedError when it was the last."""
        self.visits -= visits
        if self.visits < 0:
            raise BudgetExhaustedError(f"the work exceeds the budget of {MAX_VISITS:,} visits")

    def descend(self) -> None:
        """Enter one schema; the caller leaves it by `depth -= 1`."""
        self.spend()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BudgetExhaustedError(f"schemas apply inside each other over {MAX_DEPTH} deep")

    def search(self, pattern: regex.Pattern[str], text: str) -> bool:
        """Whether the pattern is found anywhere in the text."""
        self.spend()
        started = time.thread_time()
        try:
            found = pattern.search(text, timeout=self._seconds)
        except TimeoutError:
            found, self._seconds = None, 0.0
        self._seconds -= time.thread_time() - started
        if self._seconds <= 0:
            raise BudgetExhaustedError(f"patterns searched for over {REGEX_SECONDS} seconds")
        return found is not None


def structural_key(value: Any, budget: Budget) -> str:
    """A text that two JSON values share exactly when they are equal: 1 and 1.0, but not true.

    A string, since Python salts the hashes of strings: no choice of values collides.
    """
    budget.spend()
    match value:
        case str():
            budget.spend(len(value) >> 10)
            return f"{len(value)}:{value}"
        case list():
            return f"[{','.join(structural_key(each, budget) for each in value)}]"
        case dict():
            items = (f"{len(k)}:{k}={structural_key(value[k], budget)}" for k in sorted(value))
            return f"{{{','.join(items)}}}"
        case float() if value.is_integer():
            return repr(int(value))
        case _:
            return repr(cast(object, value))
