"""The OpenAI protocol: `/v1/chat/completions` as the official reference has it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from astrai_cli.engine.request import GenerationRequest, TokenLogprob, Usage
from astrai_cli.serving.builder import Prepared, ResponseBuilder, ResponseContext, usage_of
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.conversation import Conversation, prepare_chat
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, openai_error
from astrai_cli.serving.logprobs import logprobs_object
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.parsers import Delta
from astrai_cli.serving.schemas import ChatCompletionRequest
from astrai_cli.serving.sse import data_event, json_text


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Chat completions, whole and as chunks."""

    request_model = ChatCompletionRequest

    def prepare(
        self, request: ChatCompletionRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        engine.check_model(request.model)
        engine.check_choices(request.n)
        conversation = Conversation(request.messages, request.active_tools, request.effort)
        prompt, images, make_parser = prepare_chat(conversation, engine, session_id)
        ctx = ResponseContext(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            model=engine.model_id,
            request=GenerationRequest(
                prompt=prompt.ids,
                sampling=request.sampling(),
                max_tokens=request.token_limit,
                images=images,
                stop=tuple(request.stop),
                stop_token_ids=tuple(request.stop_token_ids),
                ignore_eos=request.ignore_eos,
                write_special=engine.format.writes_special,
                logprobs=request.top_logprobs if request.logprobs else None,
                session_id=session_id,
            ),
            token_bytes=engine.token_bytes,
            make_parser=make_parser,
            stream=request.stream,
            include_usage=request.include_usage,
            shows_reasoning=request.shows_reasoning,
            n=request.n,
            system_fingerprint=engine.fingerprint,
        )
        return Prepared(ctx, prompt)

    def format_stream_start(self, ctx: ResponseContext, usage: Usage) -> str:
        delta = {"role": "assistant", "content": ""}
        return "".join(_choice_chunk(ctx, index, delta) for index in range(ctx.n))

    def format_chunk(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        chunks = _deltas(ctx, news.deltas)
        if news.logprobs:
            # With the first text they belong to, or alone.
            first = chunks.pop(0) if chunks else {"content": ""}
            logprobs = _logprobs(ctx, news.logprobs)
            with_logprobs = _choice_chunk(ctx, choice.index, first, logprobs=logprobs)
        else:
            with_logprobs = ""
        return with_logprobs + "".join(_choice_chunk(ctx, choice.index, each) for each in chunks)

    def format_choice_end(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        chunks = _deltas(ctx, news.deltas)
        if choice.calls:
            calls = [{"index": index, **call} for index, call in enumerate(_calls(choice))]
            chunks.append({"tool_calls": calls})
        held_back = "".join(_choice_chunk(ctx, choice.index, each) for each in chunks)
        return held_back + _choice_chunk(ctx, choice.index, {}, **_end(choice))

    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        end = _chunk(ctx, choices=[], usage=_usage(ctx, choices)) if ctx.include_usage else ""
        return end + "data: [DONE]\n\n"

    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            **_head(ctx, "chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": {**_message(ctx, choice), "refusal": None, "annotations": []},
                    "logprobs": _logprobs(ctx, choice.logprobs),
                    **_end(choice),
                }
                for choice in choices
            ],
            "usage": _usage(ctx, choices),
        }

    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        return ChatMessage.model_validate(_message(ctx, choice))

    def format_error(self, problem: Problem) -> dict[str, Any]:
        return openai_error(problem)

    def format_stream_error(self, problem: Problem) -> str:
        return data_event(openai_error(problem))


def _choice_chunk(ctx: ResponseContext, index: int, delta: dict[str, Any], **fields: Any) -> str:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
    # With usage asked for, every chunk has the key, and all but the last one a null.
    return _chunk(ctx, choices=[choice], **({"usage": None} if ctx.include_usage else {}))


def _chunk(ctx: ResponseContext, **fields: Any) -> str:
    return data_event({**_head(ctx, "chat.completion.chunk"), **fields})


def _head(ctx: ResponseContext, kind: str) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "object": kind,
        "created": ctx.created,
        "model": ctx.model,
        "service_tier": "default",
        "system_fingerprint": ctx.system_fingerprint,
    }


def _deltas(ctx: ResponseContext, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """What the client is to see of deltas."""
    names = {"content": "content", "reasoning": "reasoning_content"}
    return [
        {names[delta.channel]: delta.text}
        for delta in deltas
        if ctx.shows_reasoning or delta.channel == "content"
    ]


def _message(ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning and ctx.shows_reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message |= {"content": choice.content or None, "tool_calls": _calls(choice)}
    return message


def _calls(choice: Choice) -> list[dict[str, Any]]:
    return [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json_text(call.arguments)},
        }
        for call_id, call in choice.calls
    ]


def _end(choice: Choice) -> dict[str, str | None]:
    return {"finish_reason": choice.finish_reason, "matched_stop": choice.finish.matched_stop}


def _logprobs(ctx: ResponseContext, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """None where none were asked for."""
    return None if ctx.request.logprobs is None else logprobs_object(tokens, ctx.token_bytes)


def _usage(ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
    usage = usage_of(choices)
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    # Where ids were removed, or go on behind the answer, the count would not be that of the answer.
    if not ctx.request.ignore_eos and not any(choice.is_cut for choice in choices):
        n_reasoning = sum(choice.n_reasoning for choice in choices)
        body["completion_tokens_details"] = {"reasoning_tokens": n_reasoning}
    return body
