"""From the calls a model wrote to calls that their tools accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astrai_cli.serving.parsers.output import InvalidToolOutputError, ToolCall
from astrai_cli.serving.tool_schemas import Tool, ToolSet
from astrai_cli.serving.tool_schemas.budget import Budget, BudgetExhaustedError


class WrittenCall(Protocol):
    """A call as the model wrote it."""

    name: str

    def arguments_for(self, tool: Tool, budget: Budget) -> dict[str, Any]:
        """The arguments that the tool's schema accepts.

        Raises InvalidToolOutputError where it accepts none, and BudgetExhaustedError.
        """
        ...


@dataclass(slots=True)
class TextCall:
    """A call whose parameters are texts, to be read as their schemas declare them."""

    name: str
    parameters: list[tuple[str, str]]

    def arguments_for(self, tool: Tool, budget: Budget) -> dict[str, Any]:
        texts = dict(self.parameters)
        if len(texts) < len(self.parameters):
            raise InvalidToolOutputError(f"the model gave {tool.name!r} a parameter twice")
        arguments = tool.coercion.read(texts, budget)
        if arguments is None:
            raise _refused(tool)
        return arguments


@dataclass(slots=True)
class JsonCall:
    """A call whose arguments are JSON values already."""

    name: str
    arguments: dict[str, Any]

    def arguments_for(self, tool: Tool, budget: Budget) -> dict[str, Any]:
        if not tool.node.accepts(self.arguments, budget):
            raise _refused(tool)
        return self.arguments


def accepted_calls(written: Sequence[WrittenCall], tools: ToolSet) -> tuple[ToolCall, ...]:
    """All calls of one answer, under one budget.

    Raises InvalidToolOutputError when one of them is not accepted.
    """
    budget = Budget()
    accepted = []
    for call in written:
        tool = tools.find(call.name)
        if tool is None:
            raise InvalidToolOutputError(
                f"the model called {call.name[:80]!r}, which is no tool of this request"
            )
        try:
            accepted.append(ToolCall(tool.name, call.arguments_for(tool, budget)))
        except BudgetExhaustedError as error:
            raise InvalidToolOutputError(
                f"the arguments of {tool.name!r} take too long to validate: {error}"
            ) from error
    return tuple(accepted)


def _refused(tool: Tool) -> InvalidToolOutputError:
    return InvalidToolOutputError(f"the arguments of {tool.name!r} do not match its schema")
