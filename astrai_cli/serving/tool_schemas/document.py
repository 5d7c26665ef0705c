"""A schema as a document: the places that hold schemas, and what references lead to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from astrai_cli.serving.tool_schemas.dialects import Dialect, Schema, SchemaRefusedError

# Keywords whose schemas apply to the value itself, not to a part of it.
IN_PLACE = frozenset(("$ref", "allOf", "anyOf", "dependencies", "dependentSchemas"))
IN_PLACE |= {"else", "if", "not", "oneOf", "then"}

_NEVER_APPLIED = frozenset(("$defs", "contentSchema", "definitions"))


def is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


class Document:
    """One schema with everything inside it. Nothing outside it is ever looked up.

    anchors: the schemas that have a plain name, filled in as they are found.
    """

    def __init__(self, root: Schema, dialect: Dialect) -> None:
        self.root = root
        self.dialect = dialect
        self.anchors: dict[str, Schema] = {}
        identifier = root.get("$id", "") if isinstance(root, dict) else ""
        self._base = identifier.partition("#")[0] if isinstance(identifier, str) else ""

    def locations(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """The schemas directly inside a well-formed one, each with its keyword."""
        if isinstance(schema, bool):
            return
        dialect = self.dialect
        for keyword, value in schema.items():
            if keyword in dialect.mapped and isinstance(value, dict):
                yield from ((keyword, each) for each in value.values() if is_schema(each))
            elif keyword in dialect.listed and isinstance(value, list):
                yield from ((keyword, each) for each in value)
            elif keyword in dialect.single and is_schema(value):
                yield keyword, value

    def applied(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """The schemas that a schema applies, references followed.

        Raises SchemaRefusedError for a reference that leads nowhere.
        """
        if isinstance(schema, dict) and "$ref" in schema:
            yield "$ref", self.resolve(schema["$ref"])
            if self.dialect.ref_stands_alone:
                return
        for keyword, each in self.locations(schema):
            if keyword not in _NEVER_APPLIED and (
                keyword != "dependencies" or self.dialect.ref_stands_alone
            ):
                yield keyword, each

    def resolve(self, reference: str) -> Schema:
        """The schema a reference means: a JSON pointer or an anchor of this document.

        Raises SchemaRefusedError for any other, and where it leads to no schema.
        """
        shown = reference if len(reference) <= 80 else reference[:79] + "…"
        location, fragment = self._split(reference)
        if location != self._base:
            raise SchemaRefusedError(f"$ref {shown!r} leads outside the schema")
        if not fragment:
            return self.root
        target = self._at(fragment) if fragment.startswith("/") else self.anchors.get(fragment)
        if not isinstance(target, dict | bool):
            raise SchemaRefusedError(f"$ref {shown!r} leads to no schema")
        return target

    def _split(self, reference: str) -> tuple[str, str]:
        """The document and the fragment that a reference names."""
        if reference.startswith("#"):
            return self._base, unquote(reference[1:])
        try:
            location, _, fragment = urljoin(self._base, reference).partition("#")
        except ValueError:
            return reference, ""
        return location, unquote(fragment)

    def _at(self, pointer: str) -> Any:
        """The value at a JSON pointer (RFC 6901), or None."""
        value: Any = self.root
        for escaped in pointer.split("/")[1:]:
            step = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and step.isascii() and step.isdigit():
                index = int(step) if len(step) < 10 else len(value)
                value = value[index] if index < len(value) else None
            else:
                return None
        return value
