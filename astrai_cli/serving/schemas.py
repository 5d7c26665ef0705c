"""The requests of the OpenAI protocol: what is honoured, what is harmless, what is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.config import INT32_MAX, MAX_CHOICES
from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling.logprobs import MAX_TOP_LOGPROBS
from astrai_cli.engine.sampling.params import (
    MAX_BIAS,
    MAX_BIASED_TOKENS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MIN_REPETITION_PENALTY,
)
from astrai_cli.engine.sessions import MAX_ID_LENGTH
from astrai_cli.engine.stops import MAX_STOP_CHARS, MAX_STOPS
from astrai_cli.serving.body import Body, only, wrap
from astrai_cli.serving.messages import MAX_MESSAGES, ChatMessage
from astrai_cli.serving.reasoning import ReasoningBody
from astrai_cli.serving.tool_requests import ToolsBody


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: Annotated[bool, only(False)] = False


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""A token id as a key of a JSON object."""

Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
SessionId = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


class GenerationBody(Body):
    """What the bodies of all protocols have that ask for an answer."""

    session_id: SessionId | None = None


class ChatCompletionRequest(GenerationBody, ReasoningBody, ToolsBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None

    max_tokens: int | None = Field(None, ge=1, le=INT32_MAX)
    max_completion_tokens: int | None = Field(None, ge=1, le=INT32_MAX)
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0, le=INT32_MAX)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[
        list[StopString], wrap(str, lambda stop: [stop] if stop else []), Field(max_length=16)
    ] = []
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOPS)] = []
    ignore_eos: bool = False
    repetition_penalty: float = Field(1.0, ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)
    presence_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    frequency_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=MAX_BIASED_TOKENS)] = {}
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None

    # Accepted, and nothing to do: they concern accounts.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    service_tier: Annotated[str, only("auto", "default")] = "auto"

    # Accepted only where they ask for what happens anyway.
    modalities: Annotated[list[str], only(["text"])] = ["text"]
    response_format: Annotated[dict[str, Any], only({"type": "text"})] = {"type": "text"}
    store: Annotated[bool, only(False)] = False
    add_generation_prompt: Annotated[bool, only(True)] = True
    continue_final_message: Annotated[bool, only(False)] = False

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatCompletionRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "invalid_value", "max_tokens and max_completion_tokens exclude each other"
            )
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("invalid_value", "stream_options needs stream to be true")
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("invalid_value", "top_logprobs needs logprobs to be true")
        self.check_reasoning()
        return self

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            # The protocol's seeds may be negative, the engine's may not.
            seed=None if self.seed is None else self.seed % 2**63,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple((int(key), bias) for key, bias in self.logit_bias.items()),
        )

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
