"""The ways an object schema can be read: one alternative a choice of branches.

An alternative is a list of schemas that hold together. Its parameters' types are
decided by the same branches, so a value is never read by one branch and its
neighbour by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import Schema, SchemaRefusedError
from astrai_cli.serving.tool_schemas.document import Document

MAX_ALTERNATIVES = 1023

Alternative = tuple[dict[str, Any], ...]


class Alternatives:
    """Finds the alternatives of a document's schemas."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self._document = document
        self._budget = budget

    def of(self, schema: Schema) -> list[Alternative]:
        """Every alternative of one schema, in the order in which it names them.

        Raises SchemaRefusedError for over MAX_ALTERNATIVES.
        """
        if isinstance(schema, bool):
            return [()] if schema else []
        found: list[Alternative] = [(schema,)]
        for choice in self._choices(schema):
            found = self._product(found, choice)
        return found

    def _product(self, left: list[Alternative], right: list[Alternative]) -> list[Alternative]:
        if len(left) * len(right) > MAX_ALTERNATIVES:
            raise SchemaRefusedError(f"it has over {MAX_ALTERNATIVES:,} alternatives")
        both = [each + other for each in left for other in right]
        self._budget.spend(sum(map(len, both)))
        return both

    def _choices(self, schema: dict[str, Any]) -> Iterator[list[Alternative]]:
        """For each thing a schema leaves open, the alternatives there are."""
        if "$ref" in schema:
            yield self.of(self._document.resolve(schema["$ref"]))
            if self._document.dialect.ref_stands_alone:
                return
        for each in schema.get("allOf", []):
            yield self.of(each)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                yield self._any(schema[keyword])
        if "if" in schema:
            condition = self.of(schema["if"])
            then = self._product(condition, self.of(schema.get("then", True)))
            yield self._joined(then, self.of(schema.get("else", True)))
        for name, each in self._dependents(schema):
            yield self._joined([()], self._product([({"required": [name]},)], self.of(each)))

    def _any(self, schemas: list[Schema]) -> list[Alternative]:
        found: list[Alternative] = []
        for each in schemas:
            found = self._joined(found, self.of(each))
        return found

    def _joined(self, left: list[Alternative], right: list[Alternative]) -> list[Alternative]:
        if len(left) + len(right) > MAX_ALTERNATIVES:
            raise SchemaRefusedError(f"it has over {MAX_ALTERNATIVES:,} alternatives")
        self._budget.spend(len(right))
        return left + right

    def _dependents(self, schema: dict[str, Any]) -> Iterator[tuple[str, Schema]]:
        """What applies where the property of a name is there."""
        keyword = "dependentSchemas" if self._document.dialect.vocabularies else "dependencies"
        for name, each in schema.get(keyword, {}).items():
            if not isinstance(each, list):
                yield name, each
