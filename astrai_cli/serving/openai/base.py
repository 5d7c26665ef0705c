"""What OpenAI's chat completions and completions have in common: heads, ends, usage, errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from astrai_cli.config import ApiDialect
from astrai_cli.serving.builder import Body, ResponseBuilder, ResponseContext, usage_of
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.errors import Problem, openai_error
from astrai_cli.serving.transport.sse import data_event


class OpenAIBuilder(ResponseBuilder[Body]):
    """Answers of `n` choices, streamed as chunks; usage and errors as the dialect has them.

    OpenAI's clients take usage from a chunk of its own behind the choices. OpenRouter's
    read no further than the last choice's end, so there it carries the usage, and all ends
    come when every choice has ended.
    """

    answer_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, dialect: ApiDialect = "openai") -> None:
        self._dialect = dialect

    @abstractmethod
    def _news_chunks(self, ctx: ResponseContext, choice: Choice, news: News) -> list[str]:
        """The chunks of what came last, without an end."""

    @abstractmethod
    def _end_choice(self, choice: Choice) -> dict[str, Any]:
        """The choice of the chunk that ends it."""

    @abstractmethod
    def _whole_choice(self, ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
        """A choice of an answer that is not streamed."""

    def format_chunk(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        return "".join(self._news_chunks(ctx, choice, news))

    def format_choice_end(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        chunks = self._news_chunks(ctx, choice, news)
        if not self._usage_ends_choices(ctx):
            chunks.append(self._choice_chunk(ctx, self._end_choice(choice)))
        return "".join(chunks)

    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        chunks = []
        if self._usage_ends_choices(ctx):
            *others, last = map(self._end_choice, choices)
            chunks = [self._choice_chunk(ctx, each) for each in others]
            chunks.append(self._chunk(ctx, choices=[last], usage=_usage(ctx, choices)))
        elif ctx.include_usage:
            chunks = [self._chunk(ctx, choices=[], usage=_usage(ctx, choices))]
        return "".join([*chunks, "data: [DONE]\n\n"])

    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            **_head(ctx, self.answer_object),
            "choices": [self._whole_choice(ctx, choice) for choice in choices],
            "usage": _usage(ctx, choices),
        }

    def format_error(self, problem: Problem) -> dict[str, Any]:
        body = openai_error(problem)
        if self._dialect == "openrouter" and problem.need is not None:
            body["error"]["metadata"] = {
                "error_type": problem.code,
                "context_length": problem.need.context,
                "prompt_tokens": problem.need.prompt,
                "max_prompt_tokens": problem.need.max_prompt,
                "max_tokens": problem.need.answer,
            }
        return body

    def format_stream_error(self, problem: Problem) -> str:
        return data_event(self.format_error(problem))

    def _choice_chunk(self, ctx: ResponseContext, choice: dict[str, Any]) -> str:
        # Where a chunk of its own is to bring the usage, every other one says that it has none.
        has_null = ctx.include_usage and not self._usage_ends_choices(ctx)
        return self._chunk(ctx, choices=[choice], **({"usage": None} if has_null else {}))

    def _chunk(self, ctx: ResponseContext, **fields: Any) -> str:
        return data_event({**_head(ctx, self.chunk_object), **fields})

    def _usage_ends_choices(self, ctx: ResponseContext) -> bool:
        return ctx.include_usage and self._dialect == "openrouter"


def choice_end(choice: Choice) -> dict[str, str | None]:
    """How a choice ended."""
    return {"finish_reason": choice.finish_reason, "matched_stop": choice.finish.matched_stop}


def _head(ctx: ResponseContext, kind: str) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "object": kind,
        "created": ctx.created,
        "model": ctx.model,
        "service_tier": "default",
        "system_fingerprint": ctx.system_fingerprint,
    }


def _usage(ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
    usage = usage_of(choices, len(ctx.requests))
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    details: dict[str, int] = {}
    # Where ids were removed, or go on behind the answer, the count would not be that of the answer.
    if not ctx.request.ignore_eos and not any(choice.is_cut for choice in choices):
        details["reasoning_tokens"] = sum(choice.n_reasoning for choice in choices)
    if usage.accepted_tokens or usage.rejected_tokens:
        details["accepted_prediction_tokens"] = usage.accepted_tokens
        details["rejected_prediction_tokens"] = usage.rejected_tokens
    if details:
        body["completion_tokens_details"] = details
    return body
