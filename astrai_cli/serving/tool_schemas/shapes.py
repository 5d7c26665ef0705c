"""What each keyword's value must look like, from the official meta-schemas.

The meta-schemas come with jsonschema's specifications. Each keyword's part is
compiled by itself, with "a schema" standing for any object or boolean, since the
preflight visits every schema anyway. That costs microseconds a schema; running
the meta-schemas as they are, with their references to references, costs 0.2 ms.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema_specifications import REGISTRY

from astrai_cli.serving.tool_schemas.compiler import Compiler
from astrai_cli.serving.tool_schemas.dialects import Dialect
from astrai_cli.serving.tool_schemas.document import Document
from astrai_cli.serving.tool_schemas.evaluation import Node

_ANY_SCHEMA = {"type": ["object", "boolean"]}
_SELF_REFERENCES = ({"$ref": "#"}, {"$recursiveRef": "#"}, {"$dynamicRef": "#meta"})


@cache
def keyword_shapes(dialect: Dialect) -> dict[str, Node]:
    """The node that each keyword's value must pass."""
    meta = REGISTRY.contents(dialect.uri + ("" if dialect.vocabularies else "#"))
    parts = [meta] + [
        REGISTRY.contents(dialect.uri.replace("/schema", f"/meta/{vocabulary}"))
        for vocabulary in dialect.vocabularies
    ]
    merged: dict[str, Any] = {
        section: {
            name: _flat(value) for part in parts for name, value in part.get(section, {}).items()
        }
        for section in ("definitions", "$defs", "properties")
    }
    compiler = Compiler(Document(merged, dialect))
    return {keyword: compiler.compile(shape) for keyword, shape in merged["properties"].items()}


def _flat(value: Any) -> Any:
    """A part of a meta-schema without references to itself or to other parts."""
    if isinstance(value, list):
        return [_flat(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value in _SELF_REFERENCES:
        return _ANY_SCHEMA
    flat = {key: _flat(each) for key, each in value.items()}
    if isinstance(flat.get("$ref"), str):
        flat["$ref"] = "#" + flat["$ref"].partition("#")[2]
    return flat
