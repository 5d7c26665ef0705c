"""The requests of the OpenAI protocol: what is honoured, what is harmless, what is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.config import MAX_CHOICES
from astrai_cli.engine.sampling.logprobs import MAX_TOP_LOGPROBS
from astrai_cli.serving.body import Body, only
from astrai_cli.serving.generation import GenerationBody, Stops, TokenLimit
from astrai_cli.serving.messages import MAX_MESSAGES, ChatMessage
from astrai_cli.serving.reasoning import ReasoningBody
from astrai_cli.serving.tool_requests import ToolsBody


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: Annotated[bool, only(False)] = False


class UsageOptions(Body):
    """OpenRouter's way to ask for the usage of a streamed answer."""

    include: bool = False


class ChoicesBody(GenerationBody):
    """How many answers a prompt is to have, and how a stream is asked for their usage."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream_options: StreamOptions | None = None
    usage: UsageOptions | None = None

    @property
    def include_usage(self) -> bool:
        options = self.stream_options
        asked = self.usage is not None and self.usage.include
        return asked or (options is not None and options.include_usage)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("invalid_value", "stream_options needs stream to be true")
        return self


class CacheOptions(Body):
    """Options about caching prompts, which is done where there is room."""

    mode: Annotated[str, only("implicit")] = "implicit"
    ttl: Literal["30m", "12h"] | None = None


class AccountBody(Body):
    """Fields about the client's account, bills and cache: accepted, and nothing to do."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    service_tier: Annotated[str, only("auto", "default")] = "auto"
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None


class ChatCompletionRequest(ChoicesBody, ReasoningBody, ToolsBody, AccountBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]

    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stop: Stops = []
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)

    # Accepted only where they ask for what happens anyway.
    modalities: Annotated[list[str], only(["text"])] = ["text"]
    response_format: Annotated[dict[str, Any], only({"type": "text"})] = {"type": "text"}
    store: Annotated[bool, only(False)] = False
    verbosity: Annotated[str, only("medium")] = "medium"
    add_generation_prompt: Annotated[bool, only(True)] = True
    continue_final_message: Annotated[bool, only(False)] = False

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "invalid_value", "max_tokens and max_completion_tokens exclude each other"
            )
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("invalid_value", "top_logprobs needs logprobs to be true")
        self.check_reasoning()
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
