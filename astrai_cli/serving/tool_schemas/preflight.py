"""What a schema must be before anything is generated: well formed, local and of bounded size."""

from __future__ import annotations

import math
import re
import reprlib
from collections import Counter
from typing import Any

import regex

from astrai_cli.serving.tool_schemas.assertions import compile_pattern
from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import Schema, SchemaRefusedError, dialect_of
from astrai_cli.serving.tool_schemas.document import IN_PLACE, Document
from astrai_cli.serving.tool_schemas.shapes import keyword_shapes

MAX_NODES = 4096
MAX_DEPTH = 60
DYNAMIC = ("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")
# The parts of a pattern: escapes, sets, groups, counted repeats, all else.
_PATTERN_PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|\{(\d*)(,?)(\d*)\}|.", re.ASCII | re.DOTALL
)


def check_document(document: Document, budget: Budget) -> None:
    """Raises SchemaRefusedError for a schema that is not taken, BudgetExhaustedError for too much.

    Every schema of the document is checked, also one that nothing refers to.
    """
    checked: set[int] = set()
    _check_locations(document, document.root, checked, budget)
    expansion = _Expansion(document, checked, budget)
    expansion.measure(document.root)
    expansion.check_progress()


def _check_locations(document: Document, start: Schema, checked: set[int], budget: Budget) -> None:
    """Check a schema and all inside it, where not yet done."""
    waiting: list[tuple[Schema, int]] = [(start, 0)]
    while waiting:
        schema, depth = waiting.pop()
        budget.spend()
        if isinstance(schema, bool) or id(schema) in checked:
            continue
        if depth > MAX_DEPTH:
            raise SchemaRefusedError(f"schemas are nested over {MAX_DEPTH} deep")
        checked.add(id(schema))
        _check_keywords(document, schema, budget)
        waiting += [(each, depth + 1) for _, each in document.locations(schema)]


def _check_keywords(document: Document, schema: dict[str, Any], budget: Budget) -> None:
    shapes = keyword_shapes(document.dialect)
    for keyword, value in schema.items():
        budget.spend()
        if isinstance(value, float) and not math.isfinite(value):
            raise SchemaRefusedError(f"the value of {keyword!r} is {value}, not a finite number")
        shape = shapes.get(keyword)
        if shape is not None and not shape.accepts(value, budget):
            raise SchemaRefusedError(f"the value of {keyword!r} is malformed: {_shown(value)}")
    _check_identity(document, schema)
    if "$anchor" in schema and document.dialect.vocabularies:
        name = schema["$anchor"]
        if document.anchors.setdefault(name, schema) is not schema:
            raise SchemaRefusedError(f"$anchor {_shown(name)} is there twice")
    if "pattern" in schema:
        _check_pattern(schema["pattern"], budget)
    for pattern in schema.get("patternProperties", {}):
        _check_pattern(pattern, budget)
    for keyword in ("const", "enum"):
        _count_values(schema.get(keyword), budget)


def _check_identity(document: Document, schema: dict[str, Any]) -> None:
    """Refuse what would move a reference's meaning: identifiers inside, and dynamic references."""
    for keyword in DYNAMIC:
        if keyword in schema:
            raise SchemaRefusedError(f"{keyword} is not supported")
    if schema is document.root:
        if "#" in schema.get("$id", "").removesuffix("#"):
            raise SchemaRefusedError("$id must not have a fragment")
        return
    if "$id" in schema:
        raise SchemaRefusedError("$id is supported at the root of a schema only")
    if dialect_of(schema, document.dialect) is not document.dialect:
        raise SchemaRefusedError("$schema must not change inside a schema")


def _check_pattern(pattern: str, budget: Budget) -> None:
    """Compile a pattern, for what that costs: its length, and what its repeat counts expand to."""
    budget.spend(len(pattern))
    budget.spend(_expanded_length(pattern))
    try:
        compile_pattern(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise SchemaRefusedError(f"pattern {_shown(pattern)} does not compile: {error}") from error


def _expanded_length(pattern: str) -> int:
    """How many atoms a pattern has once its counted repeats are written out."""
    open_groups = [0]
    last = 0
    for part in _PATTERN_PARTS.finditer(pattern):
        if part[0] == "(":
            open_groups.append(0)
            continue
        if part[2] is not None and (part[1] or part[3]):
            times = max(int((part[1] or "0")[:9]), int((part[3] or "0")[:9]), 1)
            open_groups[-1] += last * (times - 1)
            last *= times
            continue
        last = open_groups.pop() if part[0] == ")" and len(open_groups) > 1 else 1
        open_groups[-1] += last
    return sum(open_groups)


def _count_values(value: Any, budget: Budget) -> None:
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        budget.spend()
        if depth > MAX_DEPTH:
            raise SchemaRefusedError(f"a value is nested over {MAX_DEPTH} deep")
        if isinstance(each, float) and not math.isfinite(each):
            raise SchemaRefusedError(f"{each} is not a finite number")
        if isinstance(each, dict | list):
            parts = each.values() if isinstance(each, dict) else each
            waiting += [(part, depth + 1) for part in parts]


def _shown(value: Any) -> str:
    shown = reprlib.repr(value)
    return shown if len(shown) <= 80 else shown[:79] + "…"


class _Expansion:
    """Counts the schemas there would be if every reference were replaced by what it means.

    A reference back into a schema that is being counted counts as one.
    """

    def __init__(self, document: Document, checked: set[int], budget: Budget) -> None:
        self._document = document
        self._checked = checked
        self._budget = budget
        self._path: set[int] = set()
        # Size and depth of each schema that is done.
        self._done: dict[int, tuple[int, int]] = {}
        self._schemas: list[dict[str, Any]] = []

    def measure(self, schema: Schema) -> tuple[int, int]:
        """How many schemas, and how deep.

        Raises SchemaRefusedError for over MAX_NODES or MAX_DEPTH, and for a
        schema that would apply itself to the same value for ever.
        """
        if isinstance(schema, bool) or id(schema) in self._path:
            return 1, 0
        if id(schema) not in self._done:
            self._path.add(id(schema))
            self._done[id(schema)] = self._measure(schema)
            self._path.remove(id(schema))
        return self._done[id(schema)]

    def _measure(self, schema: dict[str, Any]) -> tuple[int, int]:
        # A reference may lead where no keyword does.
        _check_locations(self._document, schema, self._checked, self._budget)
        size, depth = 1, 0
        for _, each in self._document.applied(schema):
            self._budget.spend()
            if len(self._path) > MAX_DEPTH:
                raise SchemaRefusedError(f"schemas are nested over {MAX_DEPTH} deep")
            inner_size, inner_depth = self.measure(each)
            size, depth = size + inner_size, max(depth, inner_depth + 1)
            if size > MAX_NODES:
                raise SchemaRefusedError(f"it expands to over {MAX_NODES:,} schemas")
        if depth > MAX_DEPTH:
            raise SchemaRefusedError(f"schemas are nested over {MAX_DEPTH} deep")
        self._schemas.append(schema)
        return size, depth

    def check_progress(self) -> None:
        """Every way from a schema back to itself must lead through a part of the value.

        By Kahn's algorithm (1962): take away what nothing in place leads to, until nothing is left.
        """
        inner = {
            id(schema): [
                id(each)
                for keyword, each in self._document.applied(schema)
                if keyword in IN_PLACE and not isinstance(each, bool)
            ]
            for schema in self._schemas
        }
        n_outer = Counter(each for below in inner.values() for each in below)
        free = [schema for schema in inner if not n_outer[schema]]
        n_free = 0
        while free:
            n_free += 1
            for each in inner[free.pop()]:
                n_outer[each] -= 1
                if not n_outer[each]:
                    free.append(each)
        if n_free < len(inner):
            raise SchemaRefusedError("a schema applies itself to the same value for ever")
