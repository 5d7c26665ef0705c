"""A response as an object, and the items of its output."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from astrai_cli.serving.builder import ResponseContext, usage_of
from astrai_cli.serving.choice import Choice
from astrai_cli.serving.openai.logprobs import logprobs_object
from astrai_cli.serving.parsers import ToolCall
from astrai_cli.serving.parsers.output import Channel
from astrai_cli.serving.responses.requests import ResponseRequest
from astrai_cli.serving.transport.sse import json_text

Object = dict[str, Any]

PREFIXES = {"reasoning": "rs", "content": "msg"}
"""Of the ids of the items that hold a channel's text."""


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def text_item(channel: Channel, item_id: str, status: str, parts: Sequence[Object]) -> Object:
    """The item that holds text of a channel. parts: its content, none while it is on its way."""
    item: Object = {"id": item_id, "status": status, "content": list(parts)}
    if channel == "reasoning":
        return {"type": "reasoning", **item, "summary": [], "encrypted_content": None}
    return {"type": "message", **item, "role": "assistant"}


def text_part(channel: Channel, text: str, logprobs: Sequence[Object] = ()) -> Object:
    """The content of such an item."""
    if channel == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def call_item(call_id: str, call: ToolCall, item_id: str, status: str, arguments: str) -> Object:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call_id,
        "name": call.name,
        "arguments": arguments,
        "status": status,
    }


def output_items(ctx: ResponseContext, choice: Choice) -> Iterator[Object]:
    """The output of an answer that has ended: one item at least."""
    passages = [(passage.channel, passage.text) for passage in choice.passages]
    if needs_message(choice):
        passages.append(("content", ""))
    logprobs = logprob_entries(ctx, choice)
    for place, (channel, text) in enumerate(passages, 1):
        status = last_status(choice) if place == len(passages) else "completed"
        part = text_part(channel, text, logprobs)
        yield text_item(channel, new_id(PREFIXES[channel]), status, [part])
    for call_id, call in choice.calls:
        yield call_item(call_id, call, new_id("fc"), "completed", json_text(call.arguments))


def needs_message(choice: Choice) -> bool:
    """Whether an answer without words, that nothing cut off, has a message all the same."""
    return not choice.content and not choice.calls and choice.finish_reason != "length"


def last_status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def logprob_entries(ctx: ResponseContext, choice: Choice) -> list[Object]:
    return logprobs_object(choice.logprobs, ctx.token_bytes)["content"] or []


def response_object(
    ctx: ResponseContext, request: ResponseRequest, output: Sequence[Object], **fields: Any
) -> Object:
    """The response to a request. fields: status and what else is not as before it has ended."""
    return {
        "id": ctx.id,
        "object": "response",
        "created_at": ctx.created,
        "status": "in_progress",
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": request.metadata or {},
        "model": ctx.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.reasoning.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": request.tool_choice,
        "tools": [tool.model_dump() for tool in request.tools],
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
        **fields,
    }


def ended_response(
    ctx: ResponseContext, request: ResponseRequest, output: Sequence[Object], choice: Choice
) -> Object:
    """The response that an answer has become."""
    is_cut_off = choice.finish_reason == "length"
    return response_object(
        ctx,
        request,
        output,
        status="incomplete" if is_cut_off else "completed",
        completed_at=None if is_cut_off else int(time.time()),
        incomplete_details={"reason": "max_output_tokens"} if is_cut_off else None,
        usage=_usage(choice),
    )


def _usage(choice: Choice) -> Object:
    usage = usage_of([choice])
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": choice.n_reasoning},
        "total_tokens": usage.total_tokens,
    }
