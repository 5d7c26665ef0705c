"""What the OpenAI protocol answers, for the document that describes it."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(TypedDict):
    """A token that was likely; bytes: its own, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log probabilities of an answer's tokens."""

    content: list[TokenLogprob]
    refusal: None


class FunctionCall(TypedDict):
    """arguments: the JSON text of an object."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that its tool's schema accepts."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ToolCallDelta(ToolCall):
    """A whole call; index: its number in the answer."""

    index: int


class AnswerMessage(TypedDict):
    """An answer. content is null beside calls, where there is none.

    reasoning: the same as reasoning_content, in OpenRouter's dialect.
    """

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    refusal: None
    annotations: list[Any]


class ChatChoice(TypedDict):
    """One of the answers. matched_stop: the stop string that was removed."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    matched_stop: str | None


class PromptTokens(TypedDict):
    """cached_tokens: those that did not have to run."""

    cached_tokens: int


class CompletionTokens(TypedDict):
    """reasoning_tokens: those of the reasoning, hidden or not.

    The others count what was guessed ahead: accepted tokens are part of the answer, rejected
    ones are not, nor of completion_tokens.
    """

    reasoning_tokens: NotRequired[int]
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class Usage(TypedDict):
    """The tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: NotRequired[CompletionTokens]


class Head(TypedDict):
    """What every answer begins with; created: seconds since 1970."""

    id: str
    created: int
    model: str
    service_tier: Literal["default"]
    system_fingerprint: str


class ChatCompletion(Head):
    """An answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class Delta(TypedDict):
    """What is new of an answer."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChunkChoice(TypedDict):
    """A piece of one of the answers; its last has a finish_reason."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    matched_stop: NotRequired[str | None]


class ChatCompletionChunk(Head):
    """An event of a streamed answer."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]


class CompletionLogprobs(TypedDict):
    """Log probabilities of a text's tokens, in lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One of the texts, or a piece of it; the last piece has a finish_reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    matched_stop: NotRequired[str | None]


class Completion(Head):
    """The texts that continue prompts. Of streamed events one alone may have a usage."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class Model(TypedDict):
    """The model, with the fields of OpenAI's and Anthropic's clients.

    context_length: tokens of a prompt and its answer together.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelList(TypedDict):
    """All models, which is one."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Detail(TypedDict):
    """One of the things that are wrong with a body's shape."""

    loc: list[str | int]
    msg: str
    type: str


class ContextMetadata(TypedDict):
    """How far a prompt is over the context, in OpenRouter's dialect."""

    error_type: str
    context_length: int
    prompt_tokens: int | None
    max_prompt_tokens: int | None
    max_tokens: int | None


class ErrorObject(TypedDict):
    """param: the field that is at fault, where it is one."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str
    metadata: NotRequired[ContextMetadata]


class Error(TypedDict):
    """What went wrong. detail: a list for a body of the wrong shape (422), a text for 503."""

    error: ErrorObject
    detail: NotRequired[list[Detail] | str]
