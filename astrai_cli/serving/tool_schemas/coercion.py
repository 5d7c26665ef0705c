"""From the texts of a call's parameters to the JSON values its schema declares."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import regex

from astrai_cli.serving.tool_schemas.alternatives import Alternative
from astrai_cli.serving.tool_schemas.assertions import compile_pattern, is_integer, is_number
from astrai_cli.serving.tool_schemas.budget import Budget, structural_key
from astrai_cli.serving.tool_schemas.dialects import Schema
from astrai_cli.serving.tool_schemas.evaluation import Node
from astrai_cli.serving.tool_schemas.json_text import NOTHING, parse_json
from astrai_cli.serving.tool_schemas.kinds import ANY, KindFinder, Kinds

MAX_TRIES = 1024
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
MAX_NUMBER_CHARS = 400


class Coercion:
    """Reads the parameters of one tool's calls.

    alternatives: the ways to read the tool's schema. node: the schema, compiled.
    """

    def __init__(self, alternatives: Sequence[Alternative], kinds: KindFinder, node: Node) -> None:
        self._alternatives = alternatives
        self._kinds = kinds
        self._node = node
        self._patterns: dict[str, regex.Pattern[str]] = {}

    def read(self, texts: Mapping[str, str], budget: Budget) -> dict[str, Any] | None:
        """The arguments that the schema accepts, or None where no reading of the texts is.

        Readings are tried by alternative, first those whose required parameters are
        there, and of them those that declare the most; at most MAX_TRIES are tried.
        Raises BudgetExhaustedError.
        """
        readings = itertools.islice(self._readings(texts, budget), MAX_TRIES)
        refused: set[str] = set()
        for arguments in readings:
            # The first one needs no key: it is nearly always the right one.
            if refused and structural_key(arguments, budget) in refused:
                continue
            if self._node.accepts(arguments, budget):
                return arguments
            refused.add(structural_key(arguments, budget))
        return None

    def _readings(self, texts: Mapping[str, str], budget: Budget) -> Iterator[dict[str, Any]]:
        """First each alternative's preferred reading, then all their other combinations."""
        read: dict[tuple[str, Kinds], list[Any]] = {}
        readings = [
            self._reading(alternative, texts, read, budget) for alternative in self._alternatives
        ]
        readings.sort(key=lambda reading: reading[0])
        for _, values in readings:
            yield {name: candidates[0] for name, candidates in values.items()}
        for _, values in readings:
            combinations = itertools.product(*values.values())
            next(combinations)
            for combination in combinations:
                yield dict(zip(values, combination, strict=True))

    def _reading(
        self,
        alternative: Alternative,
        texts: Mapping[str, str],
        read: dict[tuple[str, Kinds], list[Any]],
        budget: Budget,
    ) -> tuple[tuple[int, int], dict[str, list[Any]]]:
        """How little an alternative fits, and the candidates of each parameter.

        read: the candidates known so far, since alternatives mostly agree on them.
        """
        n_missing = sum(
            name not in texts for schema in alternative for name in schema.get("required", [])
        )
        n_undeclared = 0
        values: dict[str, list[Any]] = {}
        for name, text in texts.items():
            declared, kinds = self._kinds_of(name, alternative, budget)
            n_undeclared += not declared
            if (name, kinds) not in read:
                read[name, kinds] = candidates(text, kinds)
            values[name] = read[name, kinds]
        return (n_missing, n_undeclared), values

    def _kinds_of(self, name: str, alternative: Alternative, budget: Budget) -> tuple[bool, Kinds]:
        """Whether an alternative's properties name a parameter, and the types they leave it."""
        declared, kinds = False, ANY
        for schema in alternative:
            budget.spend()
            declared = declared or name in schema.get("properties", {})
            for each in self._projections(name, schema, budget):
                kinds &= self._kinds.of(each, budget)
        return declared, kinds

    def _projections(self, name: str, schema: dict[str, Any], budget: Budget) -> Iterator[Schema]:
        """The schemas that one object schema applies to the property of a name."""
        found = False
        if name in schema.get("properties", {}):
            found = True
            yield schema["properties"][name]
        for pattern, each in schema.get("patternProperties", {}).items():
            if budget.search(self._compiled(pattern), name):
                found = True
                yield each
        if not found and "additionalProperties" in schema:
            yield schema["additionalProperties"]

    def _compiled(self, pattern: str) -> regex.Pattern[str]:
        if pattern not in self._patterns:
            self._patterns[pattern] = compile_pattern(pattern)
        return self._patterns[pattern]


def candidates(text: str, kinds: Kinds) -> list[Any]:
    """The values a parameter's text may stand for, the preferred one first.

    Where a string is all that is declared, the text is it. Else what reads as
    JSON of a declared type is that, and the text itself comes second.
    """
    if kinds == {"string"}:
        return [text]
    found: list[Any] = []
    value = _decoded(text.strip(), kinds)
    if value is not NOTHING and _allows(kinds, value):
        found.append(value)
    if "string" in kinds or not found:
        found.append(text)
    return found


def _decoded(text: str, kinds: Kinds) -> Any:
    """The value that a text spells, or NOTHING. A string is never spelled, it is the text."""
    value = parse_json(text)
    if (value is NOTHING or isinstance(value, str)) and "string" not in kinds:
        value = _number(text)
    if isinstance(value, str):
        return NOTHING
    if "number" not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(text: str) -> Any:
    """A number in a spelling that JSON does not have: +5, 007, .5 or 5."""
    if len(text) > MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return NOTHING
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else NOTHING


def _allows(kinds: Kinds, value: Any) -> bool:
    match value:
        case None:
            return "null" in kinds
        case bool():
            return "boolean" in kinds
        case list():
            return "array" in kinds
        case dict():
            return "object" in kinds
        case _:
            return is_number(value) and (
                "number" in kinds or ("integer" in kinds and is_integer(value))
            )
