"""From a document to the nodes that judge values."""

from __future__ import annotations

from typing import Any

from astrai_cli.serving.tool_schemas.applicators import APPLICATORS, LAST
from astrai_cli.serving.tool_schemas.assertions import ASSERTIONS
from astrai_cli.serving.tool_schemas.dialects import Dialect, Schema
from astrai_cli.serving.tool_schemas.document import Document
from astrai_cli.serving.tool_schemas.evaluation import ALWAYS, NEVER, Check, Node

# Keywords of later drafts than 7, which are unknown to it.
_SINCE_2019 = frozenset(
    ("dependentRequired", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas")
)


class Compiler:
    """Compiles each schema of a document once; schemas that refer to each other share nodes.

    The document must have passed the preflight: it is well formed, its
    references lead somewhere and its depth is bounded.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes: dict[int, Node] = {}
        self._waiting: list[tuple[Node, dict[str, Any]]] = []

    @property
    def dialect(self) -> Dialect:
        return self._document.dialect

    def compile(self, schema: Schema) -> Node:
        """The complete node of one schema of the document."""
        node = self.node(schema)
        while self._waiting:
            each, keywords = self._waiting.pop()
            each.checks = self._checks(keywords)
            each.last = self._last(keywords)
        return node

    def node(self, schema: Schema) -> Node:
        """The node of one schema, which `compile` may still have to complete.

        So that schemas may refer to each other in circles, and chains of any length.
        """
        if isinstance(schema, bool):
            return ALWAYS if schema else NEVER
        node = self._nodes.get(id(schema))
        if node is None:
            node = self._nodes[id(schema)] = Node()
            self._waiting.append((node, schema))
        return node

    def _checks(self, schema: dict[str, Any]) -> tuple[Check, ...]:
        checks: list[Check] = []
        if "$ref" in schema:
            checks.append(self.node(self._document.resolve(schema["$ref"])).accepts)
            if self.dialect.ref_stands_alone:
                return tuple(checks)
        checks += [
            ASSERTIONS[keyword](value)
            for keyword, value in schema.items()
            if keyword in ASSERTIONS and self._knows(keyword)
        ]
        for applicator in APPLICATORS:
            checks += applicator(schema, self)
        return tuple(checks)

    def _last(self, schema: dict[str, Any]) -> tuple[Check, ...]:
        if not self._knows("unevaluatedItems"):
            return ()
        return tuple(check for applicator in LAST for check in applicator(schema, self))

    def _knows(self, keyword: str) -> bool:
        return keyword not in _SINCE_2019 or bool(self.dialect.vocabularies)
