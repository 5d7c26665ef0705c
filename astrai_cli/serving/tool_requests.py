"""The tools of a request in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from astrai_cli.serving.body import Body, only, only_types

MAX_TOOLS = 128


class FunctionDefinition(Body):
    """A function that the model may call; its parameters' schema is checked apart.

    strict: every call that is delivered has valid arguments, asked for or not.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolDefinition(Body):
    """A tool. Functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class ToolsBody(Body):
    """The fields of a request about tools."""

    tools: Annotated[
        list[Annotated[ToolDefinition, only_types("function")]], Field(max_length=MAX_TOOLS)
    ] = []
    tool_choice: Annotated[Any, only("auto", "none")] = "auto"
    parallel_tool_calls: Annotated[bool, only(True)] = True

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """Those the model may call, as objects."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools]
