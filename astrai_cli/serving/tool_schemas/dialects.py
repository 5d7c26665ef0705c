"""The drafts of JSON Schema that tools may be written in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any] | bool


class SchemaRefusedError(Exception):
    """A schema that is malformed or that astrai does not take; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A draft: which of its keywords hold schemas, and how.

    single: one schema. listed: a list of them. mapped: an object of them. Of
    `items` and `dependencies`, only those members count that are schemas.
    """

    uri: str
    vocabularies: tuple[str, ...] = ()
    single: frozenset[str] = field(default=frozenset(), kw_only=True)
    listed: frozenset[str] = field(default=frozenset(), kw_only=True)
    mapped: frozenset[str] = field(default=frozenset(), kw_only=True)
    # Before 2019-09, `$ref` stands alone: what is beside it does not count.
    ref_stands_alone: bool = False
    # Before 2020-12, `items` may be a list, and `additionalItems` says what follows.
    tuple_items: bool = True
    # From 2020-12 on, items that `contains` found are evaluated.
    contains_evaluates: bool = False


_SINGLE = frozenset(("additionalItems", "additionalProperties", "contains", "else", "if"))
_SINGLE |= {"items", "not", "propertyNames", "then"}
_SINGLE_2019 = _SINGLE | {"contentSchema", "unevaluatedItems", "unevaluatedProperties"}
_LISTED = frozenset(("allOf", "anyOf", "items", "oneOf"))
_MAPPED = frozenset(("definitions", "dependencies", "patternProperties", "properties"))
_MAPPED_2019 = _MAPPED | {"$defs", "dependentSchemas"}
_VOCABULARIES = ("core", "applicator", "validation", "meta-data", "content")

DRAFT_7 = Dialect(
    "http://json-schema.org/draft-07/schema",
    single=_SINGLE,
    listed=_LISTED,
    mapped=_MAPPED,
    ref_stands_alone=True,
)
DRAFT_2019_09 = Dialect(
    "https://json-schema.org/draft/2019-09/schema",
    (*_VOCABULARIES, "format"),
    single=_SINGLE_2019,
    listed=_LISTED,
    mapped=_MAPPED_2019,
)
DRAFT_2020_12 = Dialect(
    "https://json-schema.org/draft/2020-12/schema",
    (*_VOCABULARIES, "format-annotation", "unevaluated"),
    single=_SINGLE_2019 - {"additionalItems"},
    listed=(_LISTED - {"items"}) | {"prefixItems"},
    mapped=_MAPPED_2019,
    tuple_items=False,
    contains_evaluates=True,
)
_BY_URI = {dialect.uri: dialect for dialect in (DRAFT_7, DRAFT_2019_09, DRAFT_2020_12)}


def dialect_of(schema: Schema, default: Dialect = DRAFT_2020_12) -> Dialect:
    """The dialect a schema names, or the default.

    Raises SchemaRefusedError for one that is not taken.
    """
    if isinstance(schema, bool) or "$schema" not in schema:
        return default
    uri = schema["$schema"]
    dialect = _BY_URI.get(uri.removesuffix("#")) if isinstance(uri, str) else None
    if dialect is None:
        raise SchemaRefusedError(
            f"$schema is {str(uri)[:80]!r}; only {', '.join(_BY_URI)} are taken"
        )
    return dialect
