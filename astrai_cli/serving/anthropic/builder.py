"""The Anthropic protocol: `/v1/messages` as the official reference has it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from astrai_cli.engine.request import GenerationRequest, Usage
from astrai_cli.serving.anthropic.blocks import BlockStream, content_of
from astrai_cli.serving.anthropic.messages import chat_messages
from astrai_cli.serving.anthropic.requests import ConversationBody, MessagesRequest
from astrai_cli.serving.builder import Prepared, ResponseBuilder, ResponseContext
from astrai_cli.serving.choice import Choice, News
from astrai_cli.serving.conversation import (
    ChatInput,
    Conversation,
    count_prompt,
    encode_conversation,
)
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, anthropic_error
from astrai_cli.serving.messages import ChatMessage
from astrai_cli.serving.parsers import ToolCall
from astrai_cli.serving.transport.sse import json_text, named_event

PING = named_event("ping", {"type": "ping"})


class AnthropicResponseBuilder(ResponseBuilder[MessagesRequest]):
    """Messages, whole and as events."""

    request_model = MessagesRequest
    sign_of_life = PING
    _blocks: BlockStream

    def prepare(
        self, request: MessagesRequest, engine: ServingEngine, session_id: str | None
    ) -> Prepared:
        chat = prepare_conversation(request, engine, session_id)
        n_prompt = count_prompt(chat, engine)
        engine.check_room(n_prompt, 1, param="messages")
        ctx = ResponseContext(
            id=f"msg_{uuid.uuid4().hex}",
            model=engine.model_id,
            request=GenerationRequest(
                prompt=chat.prompt.ids,
                sampling=request.sampling(),
                max_tokens=_token_limit(request.max_tokens, engine.max_context - n_prompt),
                images=chat.images,
                stop=tuple(request.stop_sequences),
                stop_token_ids=tuple(request.stop_token_ids),
                ignore_eos=request.ignore_eos,
                write_special=engine.format.writes_special,
                header_ids=engine.format.header_ids,
                session_id=session_id,
            ),
            token_bytes=engine.token_bytes,
            make_parser=chat.make_parser,
            stream=request.stream,
            shows_reasoning=request.shows_thinking,
        )
        return Prepared(ctx, chat.prompt)

    def format_stream_start(self, ctx: ResponseContext, usage: Usage) -> str:
        self._blocks = BlockStream(shows_thinking=ctx.shows_reasoning)
        message = _message(ctx, usage=_usage(usage))
        return named_event("message_start", {"type": "message_start", "message": message}) + PING

    def format_chunk(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        return self._blocks.add(news.deltas)

    def format_choice_end(self, ctx: ResponseContext, choice: Choice, news: News) -> str:
        blocks = self._blocks.add(news.deltas) + self._blocks.end(choice.calls)
        usage = _final_usage(ctx, choice)
        event = {
            "type": "message_delta",
            "delta": {**_end(ctx, choice), "container": None},
            "usage": {key: usage[key] for key in _CUMULATIVE},
        }
        return blocks + named_event("message_delta", event)

    def format_stream_end(self, ctx: ResponseContext, choices: Sequence[Choice]) -> str:
        return named_event("message_stop", {"type": "message_stop"})

    def format_response(self, ctx: ResponseContext, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        content = content_of(choice, shows_thinking=ctx.shows_reasoning)
        usage = _final_usage(ctx, choice)
        return _message(ctx, content=content, usage=usage, **_end(ctx, choice))

    def message(self, ctx: ResponseContext, choice: Choice) -> ChatMessage:
        # With the thinking that was not shown too: its signature brings it back.
        return ChatMessage.model_validate(
            {
                "role": "assistant",
                "content": choice.content,
                "reasoning_content": choice.reasoning or None,
                "tool_calls": [_called(*each) for each in choice.calls],
            }
        )

    def format_error(self, problem: Problem) -> dict[str, Any]:
        return anthropic_error(problem)

    def format_stream_error(self, problem: Problem) -> str:
        return named_event("error", anthropic_error(problem))


def prepare_conversation(
    body: ConversationBody, engine: ServingEngine, session_id: str | None
) -> ChatInput:
    """The prompt of a request, of any length.

    Raises RequestError for another model, and as encode_conversation does.
    """
    engine.check_model(body.model)
    # How much effort to spend is advice: a model that cannot be told so does what it does.
    effort = body.effort if engine.format.takes_effort else None
    conversation = Conversation(chat_messages(body), body.active_tools, effort, body.thinks)
    return encode_conversation(conversation, engine, session_id)


# What a message_delta tells of the usage, next to what message_start did.
_CUMULATIVE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)


def _token_limit(max_tokens: int | None, room: int) -> int | None:
    """`max_tokens`, or None where the context ends before it."""
    return max_tokens if max_tokens is not None and max_tokens <= room else None


def _message(ctx: ResponseContext, **fields: Any) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "type": "message",
        "role": "assistant",
        "model": ctx.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "diagnostics": None,
        **fields,
    }


def _called(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": call.name, "arguments": json_text(call.arguments)}}


def _end(ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
    stop_sequence = choice.finish.matched_stop
    match choice.finish_reason:
        case "tool_calls":
            reason = "tool_use"
        case "length" if ctx.request.max_tokens is None:
            reason = "model_context_window_exceeded"
        case "length":
            reason = "max_tokens"
        case _:
            reason = "end_turn" if stop_sequence is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop_sequence, "stop_details": None}


def _final_usage(ctx: ResponseContext, choice: Choice) -> dict[str, Any]:
    usage = _usage(choice.finish.usage)
    # Where ids were removed, or go on behind the answer, the count would not be that of the answer.
    if not ctx.request.ignore_eos and not choice.is_cut:
        usage["output_tokens_details"] = {"thinking_tokens": choice.n_reasoning}
    return usage


def _usage(usage: Usage) -> dict[str, Any]:
    """Prompt tokens that were cached are told apart from the others. None is ever paid for."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
        "speed": "standard",
    }
