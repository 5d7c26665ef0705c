"""What the responses protocol answers, for the document that describes it."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from astrai_cli.serving.openapi.openai_answers import TokenLogprob
from astrai_cli.serving.reasoning import Effort

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """Text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(TypedDict):
    """Reasoning of an answer."""

    type: Literal["reasoning_text"]
    text: str


class MessageItem(TypedDict):
    """What the model says."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(TypedDict):
    """What the model says to itself."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[Any]
    encrypted_content: None


class CallItem(TypedDict):
    """A call that its tool's schema accepts; arguments: the JSON text of an object."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


Item = MessageItem | ReasoningItem | CallItem


class ResponseError(TypedDict):
    """Why a response failed."""

    code: Literal["rate_limit_exceeded", "server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ReasoningEcho(TypedDict):
    """How much the model was asked to reason."""

    effort: Effort | None
    summary: None


class TextFormat(TypedDict):
    """Plain text."""

    type: Literal["text"]


class TextEcho(TypedDict):
    """How the text is."""

    format: TextFormat
    verbosity: Literal["medium"]


class ToolEcho(TypedDict):
    """A tool of the request."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class InputTokens(TypedDict):
    """cached_tokens: those that did not have to run."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(TypedDict):
    """reasoning_tokens: those of the reasoning."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """The tokens of a request."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Response(TypedDict):
    """An answer, with what was asked for. It is kept nowhere."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: Literal[True]
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: TextEcho
    tool_choice: Literal["auto", "none"]
    tools: list[ToolEcho]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class NumberedEvent(TypedDict):
    """What every event has."""

    sequence_number: int


class ResponseEvent(NumberedEvent):
    """The response as it is now."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(NumberedEvent):
    """An item begins, empty, or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class PlacedEvent(NumberedEvent):
    """Where something new belongs."""

    item_id: str
    output_index: int


class PartEvent(PlacedEvent):
    """An item's content begins, empty, or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class TextDeltaEvent(PlacedEvent):
    """More of a text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(PlacedEvent):
    """The whole of a text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(PlacedEvent):
    """More of the reasoning."""

    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningDoneEvent(PlacedEvent):
    """The whole of the reasoning."""

    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDeltaEvent(PlacedEvent):
    """The arguments of a call, all at once."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(PlacedEvent):
    """The arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ErrorEvent(NumberedEvent):
    """What went wrong before there was a response."""

    type: Literal["error"]
    code: str
    message: str
    param: str | None


Event = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | ErrorEvent
)
