"""Every field of the official request types: honoured, refused with a code, or harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from pydantic import BaseModel
from schema_walk import SchemaWalk, Variant

from astrai_cli.serving.anthropic.requests import ConversationBody, MessagesRequest
from astrai_cli.serving.errors import Problem, problem_of

WALK = SchemaWalk(
    {
        # The client sends these as headers.
        **dict.fromkeys(("betas", "user_profile_id", "workspace_id")),
        "model": "astrai",
        "budget_tokens": 2048,
        "value": 2,
    }
)
DOCS = Path(__file__).parents[4] / "docs" / "anthropic.md"

PLAIN = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {
    *("model", "messages", "messages.role", "messages.content", "system"),
    *("messages.content.type", "system.type", "messages.content.text", "system.text"),
    *("messages.content.source", "messages.content.source.type"),
    *("messages.content.source.media_type", "messages.content.source.data"),
    *("messages.content.thinking", "messages.content.signature", "messages.content.data"),
    *("messages.content.id", "messages.content.name", "messages.content.input"),
    *("messages.content.tool_use_id", "messages.content.content", "messages.content.is_error"),
    *("messages.content.content.type", "messages.content.content.text"),
    *("tools", "tools.type", "tools.name", "tools.description", "tools.strict"),
    *("tools.input_schema", "tools.input_schema.type", "tools.input_schema.properties"),
    *("tools.input_schema.required", "tool_choice", "tool_choice.type"),
    *("thinking", "thinking.type", "thinking.display", "output_config", "output_config.effort"),
}
"""What makes up a prompt, and is honoured."""

BLOCKS = {
    *("user: text", "user: image", "user: tool_result", "system: text"),
    *("assistant: text", "assistant: thinking", "assistant: redacted_thinking"),
    "assistant: tool_use",
}
BETA = {
    *("context_management", "context_management.edits", "context_management.edits.type"),
    *("context_management.edits.keep", "context_management.edits.keep.type"),
    "context_management.edits.keep.value",
}
ANSWER = {"max_tokens", "stop_sequences", "stream"}
KINDS: dict[str, tuple[Any, type[BaseModel], set[str]]] = {
    "messages": (
        message_create_params.MessageCreateParamsStreaming,
        MessagesRequest,
        PROMPT | ANSWER,
    ),
    "beta messages": (
        beta_create_params.MessageCreateParamsStreaming,
        MessagesRequest,
        PROMPT | ANSWER | BETA,
    ),
    "count_tokens": (
        message_count_tokens_params.MessageCountTokensParams,
        ConversationBody,
        PROMPT,
    ),
}


def harmless() -> set[str]:
    """The documented fields."""
    section = DOCS.read_text("utf-8").partition("\n## Harmless fields\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for names in rows for name in names.split("`")[1::2]}


def read(kind: type[BaseModel], body: dict[str, Any]) -> Problem | None:
    try:
        kind.model_validate_json(json.dumps(body))
    except Exception as error:
        return problem_of(error)
    return None


def judged(kind: str) -> Iterator[tuple[Variant, Problem | None]]:
    params, model, _ = KINDS[kind]
    for variant in WALK.variants(params):
        yield variant, read(model, variant.value)


def has_value(variant: Variant) -> bool:
    """Whether the field that differs is more than a null."""
    value = variant.value
    for key in variant.path:
        value = value[key]
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value is not None


def is_listed(path: str, listed: set[str]) -> bool:
    return any(f".{path}.".endswith(f".{name}.") or f".{name}." in f".{path}." for name in listed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_honoured_or_harmless_or_refused_with_a_code(kind: str) -> None:
    accepted: set[str] = set()
    known, listed = KINDS[kind][-1], harmless()
    for variant, problem in judged(kind):
        if problem is None:
            if variant.path and has_value(variant):
                accepted.add(".".join(variant.path))
            continue
        assert problem.status == 400, (variant, problem)
        assert problem.code in {"unsupported_parameter", "invalid_value"}
        assert (problem.param or "").partition(".")[0] == variant.path[0]
    unknown = accepted - known
    assert unknown == {path for path in unknown if is_listed(path, listed)}
    assert known <= accepted
    if kind == "beta messages":
        assert listed == {
            name for name in listed if any(is_listed(path, {name}) for path in accepted)
        }


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_taken_of_those_who_may_say_them(kind: str) -> None:
    taken = set()
    for variant, problem in judged(kind):
        (message,) = variant.value["messages"]
        if problem is None and isinstance(message.get("content"), list):
            taken |= {f"{message['role']}: {block['type']}" for block in message["content"]}
    assert taken == BLOCKS


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_are_fields_left_out(kind: str) -> None:
    model = KINDS[kind][1]
    for variant, problem in judged(kind):
        if not has_value(variant):
            assert problem == read(model, without_nulls(variant.value)), variant


REFUSED: list[dict[str, Any]] = [
    {"never_heard_of": 1},
    {"inference_geo": "eu"},
    {"speed": "fast"},
    {"service_tier": "batch"},
    {"container": "box"},
    {"mcp_servers": [{"type": "url", "url": "http://mcp.example", "name": "x"}]},
    {"fallbacks": "default"},
    {"compaction": {"type": "summarize"}},
    {"thread": {"type": "create"}},
    {"diagnostics": {"previous_message_id": "msg_1"}},
    {"thinking": {"type": "between_tools"}},
    {"thinking": {"type": "adaptive", "display": "updates"}},
    {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
    {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    {"tool_choice": {"type": "any"}},
    {"tool_choice": {"type": "tool", "name": "f"}},
    {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]},
    {"logprobs": True},
    {"n": 2},
    {"grammar": "root ::= x"},
]


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any]) -> None:
    problem = read(MessagesRequest, {**PLAIN, **fields})
    assert problem is not None
    assert (problem.status, problem.code) == (400, "unsupported_parameter")
    assert (problem.param or "").partition(".")[0] in fields


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"max_tokens": 0},
    {"temperature": 2.5},
    {"top_p": 0},
    {"top_k": -1},
    {"messages": []},
    {"stop_sequences": [""]},
    {"stop_sequences": ["x"] * 65},
    {"thinking": {"type": "enabled", "budget_tokens": 1023}},
    {"thinking": {"type": "adaptive", "budget_tokens": 1024}},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015"}] * 2}},
]


@pytest.mark.parametrize("fields", OUT_OF_BOUNDS, ids=str)
def test_bounds(fields: dict[str, Any]) -> None:
    problem = read(MessagesRequest, {**PLAIN, **fields})
    assert problem is not None
    assert (problem.status, problem.code) == (400, "invalid_value")
    assert (problem.param or "").partition(".")[0] in fields


WRONG_SHAPE: list[dict[str, Any]] = [
    {"messages": "hi"},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "robot", "content": "hi"}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"system": 5},
    {"thinking": {"type": "enabled"}},
    {"tools": [{"name": "f"}]},
    {"stream": 1},
]


@pytest.mark.parametrize("fields", WRONG_SHAPE, ids=str)
def test_shapes(fields: dict[str, Any]) -> None:
    problem = read(MessagesRequest, {**PLAIN, **fields})
    assert problem is not None
    assert (problem.status, problem.code) == (422, "invalid_request")
    assert problem.detail


def test_sampling_is_that_of_all_protocols() -> None:
    """The reference had the first three of these until lately."""
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -1}
    assert read(MessagesRequest, {**PLAIN, **fields}) is None
    sampling = MessagesRequest.model_validate({**PLAIN, **fields}).sampling()
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed) == (0.1, 2**63 - 1)


def without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_nulls(each) for key, each in value.items() if each is not None}
        case list():
            return [without_nulls(each) for each in value]
        case _:
            return value
