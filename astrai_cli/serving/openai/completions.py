"""OpenAI's completions: `/v1/completions`, which continues texts or token ids as they stand."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from astrai_cli.config import INT32_MAX, MAX_CHOICES, ApiDialect
from astrai_cli.engine.request import GenerationRequest, TokenLogprob, Usage
from astrai_cli.engine.sampling.logprobs import MAX_TOP_LOGPROBS
from astrai_cli.serving.body import UNSUPPORTED
from astrai_cli.serving.builder import Prepared, ResponseContext
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.generation import Stops, TokenLimit
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.openai.base import OpenAIBuilder, choice_end
from astrai_cli.serving.openai.logprobs import CompletionLogprobs
from astrai_cli.serving.openai.requests import ChoicesBody
from astrai_cli.serving.parsers import make_parser
from astrai_cli.serving.tool_schemas import ToolSet

MAX_PROMPTS = 1024


def _list_prompts(value: Any) -> Any:
    """A bare text or the bare ids of one prompt as a list of it."""
    is_ids = isinstance(value, list) and bool(value) and isinstance(value[0], int)
    return [value] if isinstance(value, str) or is_ids else value


def _kind(value: Any) -> str:
    return "ids" if isinstance(value, list) else "text"


TokenIds = list[Annotated[int, Field(ge=0, le=INT32_MAX)]]
Prompt = Annotated[
    Annotated[str, Tag("text")] | Annotated[TokenIds, Tag("ids")], Discriminator(_kind)
]
"""A text, or token ids."""


class CompletionRequest(ChoicesBody):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[
        list[Prompt],
        BeforeValidator(_list_prompts, json_schema_input_type=str | TokenIds | list[Prompt]),
        Field(min_length=1, max_length=MAX_PROMPTS),
    ] = [""]
    max_tokens: TokenLimit = 16
    stop: Stops = []
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)

    # Harmless: it concerns accounts.
    user: str | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> CompletionRequest:
        if self.best_of not in {None, self.n}:
            raise PydanticCustomError(UNSUPPORTED, "best_of is supported where it is n")
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError(UNSUPPORTED, "echo is not supported together with logprobs")
        return self


class CompletionResponseBuilder(OpenAIBuilder[CompletionRequest]):
    """Completions of one request, whole and as chunks.

    Choice number n * i + j is answer j to prompt i.
    """

    request_model = CompletionRequest
    answer_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, dialect: ApiDialect = "openai") -> None:
        super().__init__(dialect)
        self._echoes: list[str] = []
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def prepare(
        self, request: CompletionRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        engine.check_model(request.model)
        engine.check_choices(request.n, len(request.prompt))
        first, *others = [
            GenerationRequest(
                prompt=tuple(_encode(prompt, request.max_tokens, engine)),
                sampling=request.sampling(),
                max_tokens=request.max_tokens,
                stop=tuple(request.stop),
                stop_token_ids=tuple(request.stop_token_ids),
                ignore_eos=request.ignore_eos,
                logprobs=request.logprobs,
                session_id=session_id,
            )
            for prompt in request.prompt
        ]
        echoes = [_text(prompt, engine) if request.echo else "" for prompt in request.prompt]
        self._echoes = [echo for echo in echoes for _ in range(request.n)]
        ctx = ResponseContext(
            id=f"cmpl-{uuid.uuid4().hex}",
            model=engine.model_id,
            request=first,
            others=tuple(others),
            token_bytes=engine.token_bytes,
            make_parser=lambda: make_parser("plain", ToolSet()),
            stream=request.stream,
            include_usage=request.include_usage,
            n=request.n,
            system_fingerprint=engine.fingerprint,
        )
        return Prepared(ctx, None)

    def format_stream_start(self, ctx: ResponseContext, usage: Usage) -> str:
        echoed = enumerate(self._echoes)
        return "".join(self._text_chunk(ctx, index, echo) for index, echo in echoed if echo)

    def _news_chunks(self, ctx: ResponseContext, choice: Choice, news: News) -> list[str]:
        text = "".join(delta.text for delta in news.deltas)
        if not text and not news.logprobs:
            return []
        return [self._text_chunk(ctx, choice.index, text, news.logprobs)]

    def _text_chunk(
        self, ctx: ResponseContext, index: int, text: str, tokens: Sequence[TokenLogprob] = ()
    ) -> str:
        logprobs = None
        if tokens:
            so_far = self._logprobs.setdefault(index, CompletionLogprobs(ctx.token_bytes))
            logprobs = so_far.add(tokens)
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        return self._choice_chunk(ctx, choice)

    def _end_choice(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, **choice_end(choice)}

    def _whole_choice(self, ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": self._echoes[choice.index] + choice.content,
            "logprobs": _logprobs(ctx, choice.logprobs),
            **choice_end(choice),
        }

    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        return ChatMessage.model_validate({"role": "assistant", "content": choice.content})


def _encode(prompt: str | list[int], max_tokens: int, engine: ServingEngine) -> list[int]:
    if isinstance(prompt, str):
        engine.check_text(prompt, max_tokens, param="prompt")
        ids = engine.text.encode_prompt(prompt)
    else:
        ids = prompt
    engine.check_room(len(ids), max_tokens, param="prompt")
    return ids


def _text(prompt: str | list[int], engine: ServingEngine) -> str:
    if isinstance(prompt, str):
        return prompt
    text: str = engine.text.tokenizer.decode(prompt, skip_special_tokens=False)
    return text


def _logprobs(ctx: ResponseContext, tokens: Sequence[TokenLogprob]) -> dict[str, list[Any]] | None:
    """None where none were asked for."""
    return None if ctx.request.logprobs is None else CompletionLogprobs(ctx.token_bytes).add(tokens)
