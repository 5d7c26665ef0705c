"""The requests of the Anthropic protocol: what is honoured, what is harmless, what is refused.

A field that is not here is refused unless it is null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.engine.stops import MAX_STOPS
from astrai_cli.serving.anthropic.content import MessageParam, TextContent
from astrai_cli.serving.body import Body, only, only_types
from astrai_cli.serving.generation import GenerationBody, SessionId, StopString, TokenLimit
from astrai_cli.serving.messages import MAX_MESSAGES
from astrai_cli.serving.reasoning import Effort

MAX_TOOLS = 1024
MIN_THINKING_BUDGET = 1024


class ToolParam(Body):
    """A tool that the client runs; its schema is checked apart.

    strict: every call that is delivered has valid input, asked for or not.
    eager_input_streaming: calls arrive whole, when their input has been checked.
    """

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = False
    allowed_callers: Annotated[list[str], only(["direct"])] = ["direct"]
    cache_control: dict[str, Any] | None = None
    defer_loading: Annotated[bool, only(False)] = False
    eager_input_streaming: bool | None = None
    input_examples: Annotated[list[Any], only([])] = []


class ToolChoice(Body):
    """Whether the model may call tools."""

    type: Literal["auto", "none"]
    disable_parallel_tool_use: Annotated[bool, only(False)] = False


class ThinkingConfig(Body):
    """`thinking` of a request.

    budget_tokens: an aim in the reference, of which the model is told nothing.
    display: of what the model thinks; a summary is the whole of it here.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=MIN_THINKING_BUDGET)
    display: Annotated[str, only("summarized", "omitted")] = "summarized"

    @model_validator(mode="after")
    def _check_budget(self) -> ThinkingConfig:
        if self.type == "enabled" and self.budget_tokens is None:
            raise PydanticCustomError("incomplete", "thinking that is enabled needs budget_tokens")
        if self.type != "enabled" and self.budget_tokens is not None:
            raise PydanticCustomError(
                "invalid_value", "only thinking that is enabled has budget_tokens"
            )
        return self


class OutputConfig(Body):
    """`output_config` of a request."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class KeptTurns(Body):
    """Answers whose thinking is kept: all, or the last `value` that have any."""

    type: Literal["all", "thinking_turns"]
    value: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_value(self) -> KeptTurns:
        if (self.type == "thinking_turns") != (self.value is not None):
            raise PydanticCustomError("invalid_value", "thinking_turns has a value, all has none")
        return self


class ClearThinking(Body):
    """Leave the thinking of older answers out of the prompt."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | KeptTurns = KeptTurns(type="thinking_turns", value=1)

    @property
    def n_kept(self) -> int | None:
        """Of how many answers it stays; None: of all."""
        return None if isinstance(self.keep, str) else self.keep.value


class ContextManagement(Body):
    """`context_management` of a request."""

    edits: Annotated[
        list[Annotated[ClearThinking, only_types("clear_thinking_20251015")]], Field(max_length=1)
    ] = []


class Metadata(Body):
    """`metadata` of a request: who asks, which is nothing to do here."""

    user_id: str | None = None


class ConversationBody(Body):
    """What a prompt is made of: the body of `POST /v1/messages/count_tokens`."""

    model: str | None = None
    session_id: SessionId | None = None
    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: TextContent = []
    tools: Annotated[
        list[Annotated[ToolParam, only_types("custom")]], Field(max_length=MAX_TOOLS)
    ] = []
    tool_choice: Annotated[ToolChoice, only_types("auto", "none")] = ToolChoice(type="auto")
    thinking: Annotated[ThinkingConfig | None, only_types("enabled", "adaptive", "disabled")] = None
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement = ContextManagement()
    # Accepted, and nothing to do.
    cache_control: dict[str, Any] | None = None
    speed: Annotated[str, only("standard")] = "standard"
    mcp_servers: Annotated[list[Any], only([])] = []

    @property
    def active_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call, as OpenAI's protocol declares them."""
        if self.tool_choice.type == "none":
            return []
        return [_function(tool) for tool in self.tools]

    @property
    def effort(self) -> Effort | None:
        """How much to reason; what is above high is the most that templates know."""
        match self.output_config.effort:
            case "xhigh" | "max":
                return "high"
            case effort:
                return effort

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    @property
    def thinks(self) -> bool | None:
        """Whether the model is to reason; None leaves it to the template."""
        kinds = {"enabled": True, "disabled": False}
        return None if self.thinking is None else kinds.get(self.thinking.type)

    @property
    def n_thinking_turns(self) -> int | None:
        """Of how many answers the thinking stays in the prompt; None: of all."""
        edits = self.context_management.edits
        return edits[0].n_kept if edits else None


class MessagesRequest(GenerationBody, ConversationBody):
    """The body of `POST /v1/messages`."""

    max_tokens: TokenLimit | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] = []
    # Accepted, and nothing to do.
    metadata: Metadata = Metadata()
    service_tier: Annotated[str, only("auto", "standard_only")] = "auto"


def _function(tool: ToolParam) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function |= {"parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": function}
