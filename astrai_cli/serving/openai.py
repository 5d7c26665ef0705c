"""The OpenAI protocol: `/v1/chat/completions` as the official reference has it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from astrai_cli.engine.request import Finish, Piece, TokenLogprob
from astrai_cli.serving.builder import (
    Choice,
    Prepared,
    ResponseBuilder,
    ResponseContext,
    usage_of,
)
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, openai_error
from astrai_cli.serving.logprobs import logprobs_object
from astrai_cli.serving.schemas import ChatCompletionRequest
from astrai_cli.serving.sse import data_event
from astrai_cli.serving.templates import Message


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Chat completions, whole and as chunks."""

    request_model = ChatCompletionRequest

    def prepare(
        self, request: ChatCompletionRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        engine.check_model(request.model)
        engine.check_choices(request.n)
        messages = [message.for_template() for message in request.messages]
        prompt = engine.encode_chat(messages, session_id)
        options = request.stream_options
        ctx = ResponseContext(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            model=engine.model_id,
            stream=request.stream,
            include_usage=options is not None and options.include_usage,
            sampling=request.sampling(),
            max_tokens=request.token_limit,
            ignore_eos=request.ignore_eos,
            token_bytes=engine.token_bytes,
            stop_token_ids=tuple(request.stop_token_ids),
            logprobs=request.top_logprobs if request.logprobs else None,
            n=request.n,
            session_id=session_id,
        )
        return prompt, ctx, tuple(request.stop)

    def format_stream_start(self, ctx: ResponseContext) -> str:
        delta = {"role": "assistant", "content": ""}
        return "".join(_choice_chunk(ctx, index, delta) for index in range(ctx.n))

    def format_chunk(self, ctx: ResponseContext, choice: Choice, piece: Piece) -> str:
        if not piece.text and not piece.logprobs:
            return ""
        logprobs = _logprobs(ctx, piece.logprobs)
        return _choice_chunk(ctx, choice.index, {"content": piece.text}, logprobs=logprobs)

    def format_choice_end(self, ctx: ResponseContext, choice: Choice) -> str:
        return _choice_chunk(ctx, choice.index, {}, **_end(choice.finish))

    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        end = _chunk(ctx, choices=[], usage=_usage(choices)) if ctx.include_usage else ""
        return end + "data: [DONE]\n\n"

    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            "id": ctx.id,
            "object": "chat.completion",
            "created": ctx.created,
            "model": ctx.model,
            "choices": [
                {
                    "index": choice.index,
                    "message": {**self.message(ctx, choice), "refusal": None},
                    "logprobs": _logprobs(ctx, choice.logprobs),
                    **_end(choice.finish),
                }
                for choice in choices
            ],
            "usage": _usage(choices),
        }

    def message(self, ctx: ResponseContext, choice: Choice) -> Message:
        return {"role": "assistant", "content": choice.text}

    def format_error(self, problem: Problem) -> dict[str, Any]:
        return openai_error(problem)

    def format_stream_error(self, problem: Problem) -> str:
        return data_event(openai_error(problem))


def _choice_chunk(ctx: ResponseContext, index: int, delta: dict[str, Any], **fields: Any) -> str:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
    # With usage asked for, every chunk has the key, and all but the last one a null.
    return _chunk(ctx, choices=[choice], **({"usage": None} if ctx.include_usage else {}))


def _chunk(ctx: ResponseContext, **fields: Any) -> str:
    return data_event(
        {
            "id": ctx.id,
            "object": "chat.completion.chunk",
            "created": ctx.created,
            "model": ctx.model,
            **fields,
        }
    )


def _end(finish: Finish) -> dict[str, str | None]:
    return {"finish_reason": finish.reason, "matched_stop": finish.matched_stop}


def _logprobs(ctx: ResponseContext, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """None where none were asked for."""
    return None if ctx.logprobs is None else logprobs_object(tokens, ctx.token_bytes)


def _usage(choices: Sequence[Choice]) -> dict[str, Any]:
    usage = usage_of(choices)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
