"""The OpenAI protocol: `/v1/chat/completions` as the official reference has it."""

from __future__ import annotations

import uuid
from typing import Any

from astrai_cli.engine.request import Finish, Piece, SamplingParams, Usage
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, openai_error
from astrai_cli.serving.protocol import Prepared, ResponseBuilder, ResponseContext
from astrai_cli.serving.schemas import ChatCompletionRequest
from astrai_cli.serving.sse import data_event


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Chat completions, whole and as chunks."""

    request_model = ChatCompletionRequest

    def prepare(self, request: ChatCompletionRequest, engine: ServingEngine) -> Prepared:
        engine.check_model(request.model)
        prompt = engine.encode_chat([message.for_template() for message in request.messages])
        options = request.stream_options
        ctx = ResponseContext(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            model=engine.model_id,
            stream=request.stream,
            include_usage=options is not None and options.include_usage,
            sampling=SamplingParams(
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                min_p=request.min_p,
                # The protocol's seeds may be negative, the engine's may not.
                seed=None if request.seed is None else request.seed % 2**63,
            ),
            max_tokens=request.token_limit,
            ignore_eos=request.ignore_eos,
        )
        return prompt, ctx, tuple(request.stop)

    def format_stream_start(self, ctx: ResponseContext) -> str:
        return _choice_chunk(ctx, {"role": "assistant", "content": ""})

    def format_chunk(self, ctx: ResponseContext, piece: Piece) -> str:
        return _choice_chunk(ctx, {"content": piece.text})

    def format_stream_end(self, ctx: ResponseContext, finish: Finish) -> str:
        end = _choice_chunk(ctx, {}, finish.reason)
        if ctx.include_usage:
            end += _chunk(ctx, choices=[], usage=_usage(finish.usage))
        return end + "data: [DONE]\n\n"

    def format_response(self, ctx: ResponseContext, text: str, finish: Finish) -> dict[str, Any]:
        return {
            "id": ctx.id,
            "object": "chat.completion",
            "created": ctx.created,
            "model": ctx.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": finish.reason,
                }
            ],
            "usage": _usage(finish.usage),
        }

    def format_error(self, problem: Problem) -> dict[str, Any]:
        return openai_error(problem)

    def format_stream_error(self, problem: Problem) -> str:
        return data_event(openai_error(problem))


def _choice_chunk(
    ctx: ResponseContext, delta: dict[str, Any], finish_reason: str | None = None
) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
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


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
