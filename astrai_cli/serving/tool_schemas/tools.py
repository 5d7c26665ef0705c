"""The tools of one request: their names in the prompt, and what their schemas make of calls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.tool_schemas.alternatives import Alternatives
from astrai_cli.serving.tool_schemas.budget import Budget, BudgetExhaustedError
from astrai_cli.serving.tool_schemas.coercion import Coercion
from astrai_cli.serving.tool_schemas.compiler import Compiler
from astrai_cli.serving.tool_schemas.dialects import (
    DRAFT_2020_12,
    Dialect,
    Schema,
    SchemaRefusedError,
    dialect_of,
)
from astrai_cli.serving.tool_schemas.document import Document
from astrai_cli.serving.tool_schemas.evaluation import Node
from astrai_cli.serving.tool_schemas.kinds import KindFinder
from astrai_cli.serving.tool_schemas.preflight import check_document

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class InvalidToolSchemaError(InvalidInputError):
    """A tool's parameters are declared by a schema that is malformed or not taken."""

    code = "invalid_tool_schema"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call.

    alias: its name in prompts. node: its schema, compiled.
    """

    name: str
    alias: str
    node: Node
    coercion: Coercion


class ToolSet:
    """The active tools of a request. Made once a request; holds no state of its answers.

    Empty, it stands for a request whose tools are disabled.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Check and compile tools in OpenAI's form, `{"type": "function", "function": …}`.

        Raises InvalidToolSchemaError for a schema that is not taken, InvalidInputError
        for a name that is malformed, there twice, or another tool's alias.
        """
        budget = Budget()
        self.tools = tuple(_tool(each["function"], budget) for each in tools)
        self._by_name: dict[str, Tool] = {}
        for tool in self.tools:
            for name in {tool.name, tool.alias}:
                other = self._by_name.setdefault(name, tool)
                if other is not tool:
                    raise InvalidInputError(
                        f"tools {other.name!r} and {tool.name!r} have the same name in the prompt,"
                        f" {name!r}",
                        param="tools",
                    )

    def __bool__(self) -> bool:
        return bool(self.tools)

    def find(self, name: str) -> Tool | None:
        """The tool of a name or an alias."""
        return self._by_name.get(name)


def prompt_alias(name: str) -> str:
    """A tool's name in prompts: a flat one becomes its own namespace's only member."""
    return name if "." in name else f"{name}.{name}"


def compile_schema(
    schema: Schema, budget: Budget, default: Dialect = DRAFT_2020_12
) -> tuple[Document, Node]:
    """A schema, checked and compiled.

    Raises SchemaRefusedError, or BudgetExhaustedError for too much work.
    """
    document = Document(schema, dialect_of(schema, default))
    check_document(document, budget)
    return document, Compiler(document).compile(schema)


def _tool(function: Mapping[str, Any], budget: Budget) -> Tool:
    name = function["name"]
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name[:80]!r} is no tool's name: 1 to 64 letters, digits, '_', '-' or '.'",
            param="tools",
        )
    try:
        declared = function.get("parameters")
        node, coercion = _prepare(_NO_PARAMETERS if declared is None else declared, budget)
    except (SchemaRefusedError, BudgetExhaustedError) as error:
        raise InvalidToolSchemaError(
            f"the schema of tool {name!r} is not taken: {error}", param="tools"
        ) from error
    return Tool(name, prompt_alias(name), node, coercion)


def _prepare(schema: Schema, budget: Budget) -> tuple[Node, Coercion]:
    if not isinstance(schema, dict):
        raise SchemaRefusedError("it must be an object")
    document, node = compile_schema(schema, budget)
    alternatives = Alternatives(document, budget).of(schema)
    kinds = KindFinder(document)
    for each in itertools.chain.from_iterable(alternatives):
        for keyword in ("properties", "patternProperties"):
            for declared in each.get(keyword, {}).values():
                budget.spend()
                kinds.of(declared, budget)
        kinds.of(each.get("additionalProperties", True), budget)
    return node, Coercion(alternatives, kinds, node)
