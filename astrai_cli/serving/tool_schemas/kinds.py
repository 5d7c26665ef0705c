"""Which types of value a schema allows, as far as they decide how a text is read."""

from __future__ import annotations

from typing import Any

from astrai_cli.serving.tool_schemas.assertions import TYPES
from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import Schema
from astrai_cli.serving.tool_schemas.document import Document

Kinds = frozenset[str]

ANY: Kinds = frozenset(TYPES)
"""The types' names; a schema that allows `number` allows `integer` too."""


class KindFinder:
    """Finds the types that a document's schemas allow, each schema once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, Kinds] = {}

    def of(self, schema: Schema, budget: Budget) -> Kinds:
        """The types one schema allows; some of them it may still refuse."""
        if isinstance(schema, bool):
            return ANY if schema else frozenset()
        if id(schema) not in self._known:
            self._known[id(schema)] = self._find(schema, budget)
        return self._known[id(schema)]

    def _find(self, schema: dict[str, Any], budget: Budget) -> Kinds:
        budget.spend()
        kinds = ANY
        if "$ref" in schema:
            kinds = self.of(self._document.resolve(schema["$ref"]), budget)
            if self._document.dialect.ref_stands_alone:
                return kinds
        if "type" in schema:
            named = schema["type"]
            kinds &= _with_integers([named] if isinstance(named, str) else named)
        if "enum" in schema:
            kinds &= _kinds_of(schema["enum"])
        if "const" in schema:
            kinds &= _kinds_of([schema["const"]])
        for each in schema.get("allOf", []):
            kinds &= self.of(each, budget)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = [self.of(each, budget) for each in schema[keyword]]
                kinds &= frozenset().union(*branches)
        if "if" in schema:
            branches = [self.of(schema.get(each, True), budget) for each in ("then", "else")]
            kinds &= frozenset().union(*branches)
        return kinds


def _with_integers(names: list[str]) -> Kinds:
    return frozenset(names) | ({"integer"} if "number" in names else frozenset())


def _kinds_of(values: list[Any]) -> Kinds:
    return frozenset(name for value in values for name, test in TYPES.items() if test(value))
