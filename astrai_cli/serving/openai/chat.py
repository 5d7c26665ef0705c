"""The OpenAI protocol: `/v1/chat/completions` as the official reference has it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from astrai_cli.engine.request import GenerationRequest, TokenLogprob, Usage
from astrai_cli.serving.builder import Prepared, ResponseContext
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.conversation import Conversation, prepare_chat
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.openai.base import OpenAIBuilder, choice_end
from astrai_cli.serving.openai.logprobs import logprobs_object
from astrai_cli.serving.openai.requests import ChatCompletionRequest
from astrai_cli.serving.parsers import Delta
from astrai_cli.serving.transport.sse import json_text


class OpenAIResponseBuilder(OpenAIBuilder[ChatCompletionRequest]):
    """Chat completions, whole and as chunks."""

    request_model = ChatCompletionRequest
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def prepare(
        self, request: ChatCompletionRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        engine.check_model(request.model)
        engine.check_choices(request.n)
        conversation = Conversation(request.messages, request.active_tools, request.effort)
        prompt, images, make_parser = prepare_chat(
            conversation, engine, session_id, request.token_limit
        )
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
                header_ids=engine.format.header_ids,
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
        return "".join(self._delta_chunk(ctx, index, delta) for index in range(ctx.n))

    def _news_chunks(self, ctx: ResponseContext, choice: Choice, news: News) -> list[str]:
        deltas = self._deltas(ctx, news.deltas)
        if choice.calls:
            calls = [{"index": index, **call} for index, call in enumerate(_calls(choice))]
            deltas.append({"tool_calls": calls})
        if not news.logprobs:
            return [self._delta_chunk(ctx, choice.index, delta) for delta in deltas]
        # With the first text they belong to, or alone.
        first, *rest = deltas or [{"content": ""}]
        logprobs = _logprobs(ctx, news.logprobs)
        return [
            self._delta_chunk(ctx, choice.index, first, logprobs),
            *(self._delta_chunk(ctx, choice.index, delta) for delta in rest),
        ]

    def _end_choice(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "delta": {}, "logprobs": None, **choice_end(choice)}

    def _whole_choice(self, ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {**self._message(ctx, choice), "refusal": None, "annotations": []},
            "logprobs": _logprobs(ctx, choice.logprobs),
            **choice_end(choice),
        }

    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        return ChatMessage.model_validate(self._message(ctx, choice))

    def _delta_chunk(
        self,
        ctx: ResponseContext,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._choice_chunk(ctx, choice)

    def _deltas(self, ctx: ResponseContext, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        """What the client is to see of deltas."""
        return [
            {"content": delta.text} if delta.channel == "content" else self._reasoning(delta.text)
            for delta in deltas
            if ctx.shows_reasoning or delta.channel == "content"
        ]

    def _message(self, ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
        message = answer_message(choice)
        reasoning = message.pop("reasoning_content", None)
        if reasoning is not None and ctx.shows_reasoning:
            message |= self._reasoning(reasoning)
        return message

    def _reasoning(self, text: str) -> dict[str, str]:
        if self._dialect == "openrouter":
            return {"reasoning_content": text, "reasoning": text}
        return {"reasoning_content": text}


def answer_message(choice: Choice) -> dict[str, Any]:
    """A finished choice as a message, with all there is in it."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content}
    if choice.reasoning:
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


def _logprobs(ctx: ResponseContext, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """None where none were asked for."""
    return None if ctx.request.logprobs is None else logprobs_object(tokens, ctx.token_bytes)
