"""What the Anthropic protocol answers, for the document that describes it."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from astrai_cli.serving.openapi.openai_answers import Detail


class Text(TypedDict):
    """Text of an answer."""

    type: Literal["text"]
    text: str


class Thinking(TypedDict):
    """Reasoning of an answer, empty where it is not shown; send it back with its signature."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUse(TypedDict):
    """A call that its tool's schema accepts."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Block = Text | Thinking | ToolUse


class CacheCreation(TypedDict):
    """Nothing here has a price, so all of these are 0."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class OutputTokens(TypedDict):
    """thinking_tokens: those of the reasoning, shown or not."""

    thinking_tokens: int


class CumulativeUsage(TypedDict):
    """The tokens of a request so far. A prompt is input_tokens and cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens | None
    server_tool_use: None


class MessageUsage(CumulativeUsage):
    """The tokens of a request."""

    cache_creation: CacheCreation
    service_tier: Literal["standard"]
    inference_geo: None
    speed: Literal["standard"]


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Message(TypedDict):
    """An answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    diagnostics: None
    usage: MessageUsage


class TokenCount(TypedDict):
    """The tokens of a prompt, all of them."""

    input_tokens: int


class MessageStart(TypedDict):
    """The first event: a message without content."""

    type: Literal["message_start"]
    message: Message


class BlockStart(TypedDict):
    """A block begins, empty."""

    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(TypedDict):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """More of the reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The signature of reasoning that has ended."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """The input of a call, as the JSON text of an object."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """More of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(TypedDict):
    """A block ends."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    """How an answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageDelta(TypedDict):
    """The answer's end and its usage."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: CumulativeUsage


class MessageStop(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


class Ping(TypedDict):
    """A sign of life."""

    type: Literal["ping"]


class ThreadRefused(TypedDict):
    """Says that a conversation must be sent whole."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[Literal["thread"]]


class AnthropicErrorObject(TypedDict):
    """param: the field that is at fault, where it is one."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "overloaded_error",
        "timeout_error",
        "api_error",
    ]
    message: str
    param: str | None
    code: str
    details: NotRequired[ThreadRefused]


class AnthropicError(TypedDict):
    """What went wrong. detail: a list for a body of the wrong shape (422), a text for 503."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str | None
    detail: NotRequired[list[Detail] | str]


Event = (
    MessageStart
    | Ping
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)
