"""Compiled schemas: nodes of checks, each of which costs what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astrai_cli.serving.tool_schemas.budget import Budget


class Evaluated:
    """Which parts of one value its schema has looked at, for the `unevaluated…` keywords.

    prefix: all items before this index. items: others. names: properties.
    """

    __slots__ = ("items", "names", "prefix")

    def __init__(self) -> None:
        self.prefix = 0
        self.items: set[int] = set()
        self.names: set[str] = set()

    def merge(self, other: Evaluated, budget: Budget) -> None:
        budget.spend(len(other.items) + len(other.names))
        self.prefix = max(self.prefix, other.prefix)
        self.items |= other.items
        self.names |= other.names


Check = Callable[[Any, Budget, Evaluated | None], bool]
"""Whether a value passes; notes what it evaluated where someone wants to know."""


class Node:
    """One compiled schema.

    checks: one a keyword, or one for keywords that belong together.
    last: those that need to know what the others evaluated.
    """

    __slots__ = ("checks", "last")

    def __init__(self) -> None:
        self.checks: tuple[Check, ...] = ()
        self.last: tuple[Check, ...] = ()

    def accepts(self, value: Any, budget: Budget, seen: Evaluated | None = None) -> bool:
        """Whether the schema accepts a JSON value.

        Raises BudgetExhaustedError when the answer would cost more than is left.
        """
        budget.descend()
        mine = Evaluated() if self.last else seen
        try:
            for check in self.checks:
                budget.spend()
                if not check(value, budget, mine):
                    return False
            for check in self.last:
                budget.spend()
                if not check(value, budget, mine):
                    return False
        finally:
            budget.depth -= 1
        if mine is not seen and mine is not None and seen is not None:
            seen.merge(mine, budget)
        return True


def _never(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
    return False


ALWAYS = Node()
NEVER = Node()
NEVER.checks = (_never,)
