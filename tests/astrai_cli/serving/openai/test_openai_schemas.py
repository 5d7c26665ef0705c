"""Every field of the official request types: honoured, refused with a code, or harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import response_create_params
from schema_walk import SchemaWalk, Variant

from astrai_cli.serving.errors import Problem, problem_of
from astrai_cli.serving.generation import GenerationBody
from astrai_cli.serving.openai.completions import CompletionRequest
from astrai_cli.serving.openai.requests import ChatCompletionRequest
from astrai_cli.serving.responses.requests import ResponseRequest

PIXEL = "data:image/png;base64,iVBORw0KGgo="
# What the reference leaves out here and there, and this server does not.
ALWAYS = {"content", "call_id", "image_url"}
CHAT_WALK = SchemaWalk({"model": "astrai", "url": PIXEL, "arguments": "{}"}, ALWAYS)
RESPONSES_WALK = SchemaWalk(
    {
        "model": "astrai",
        "image_url": PIXEL,
        "arguments": "{}",
        "detail": "auto",
        "annotations": [],
    },
    ALWAYS,
)
DOCS = Path(__file__).parents[4] / "docs" / "requests.md"

CHAT = {
    *("messages", "messages.role", "messages.name", "messages.content"),
    *("messages.content.type", "messages.content.text"),
    *("messages.content.image_url", "messages.content.image_url.url"),
    *("messages.tool_call_id", "messages.tool_calls", "messages.tool_calls.id"),
    *("messages.tool_calls.type", "messages.tool_calls.function"),
    *("messages.tool_calls.function.name", "messages.tool_calls.function.arguments"),
    *("tools", "tools.type", "tools.function", "tools.function.name"),
    *("tools.function.description", "tools.function.parameters", "tools.function.strict"),
    *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens"),
    *("model", "n", "presence_penalty", "reasoning_effort", "seed", "stop", "stream"),
    *("stream_options", "stream_options.include_usage", "temperature", "tool_choice"),
    *("top_logprobs", "top_p"),
}
"""What chat completions honour."""

COMPLETIONS = {
    *("prompt", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model", "n"),
    *("best_of", "presence_penalty", "seed", "stop", "stream", "stream_options"),
    *("stream_options.include_usage", "temperature", "top_p"),
}
"""What completions honour."""

RESPONSES = {
    *("input", "input.type", "input.role", "input.content", "input.content.type"),
    *("input.content.text", "input.content.image_url", "input.output", "input.output.type"),
    *("input.output.text", "input.call_id", "input.name", "input.arguments", "input.summary"),
    *("input.summary.type", "input.summary.text", "instructions", "include"),
    *("max_output_tokens", "model", "reasoning", "reasoning.effort", "stream", "temperature"),
    *("tool_choice", "tools", "tools.type", "tools.name", "tools.description"),
    *("tools.parameters", "tools.strict", "top_logprobs", "top_p"),
}
"""What responses honour."""

KINDS: dict[str, tuple[SchemaWalk, Any, type[GenerationBody], dict[str, Any], set[str]]] = {
    "chat completions": (
        CHAT_WALK,
        CompletionCreateParamsNonStreaming,
        ChatCompletionRequest,
        {"stream": True, "logprobs": True},
        CHAT,
    ),
    "responses": (
        RESPONSES_WALK,
        response_create_params.ResponseCreateParamsNonStreaming,
        ResponseRequest,
        {"input": "hi", "stream": True},
        RESPONSES,
    ),
    "completions": (
        CHAT_WALK,
        completion_create_params.CompletionCreateParamsNonStreaming,
        CompletionRequest,
        {"stream": True},
        COMPLETIONS,
    ),
}


def harmless() -> dict[str, set[str]]:
    """The documented fields, with the protocols that have them."""
    section = DOCS.read_text("utf-8").partition("\n## Harmless fields\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    documented: dict[str, set[str]] = {}
    for names, kinds in rows:
        for name in names.split("`")[1::2]:
            documented.setdefault(name, set()).update(kinds.split(", "))
    return documented


def read(kind: type[GenerationBody], body: dict[str, Any]) -> Problem | None:
    try:
        kind.model_validate_json(json.dumps(body))
    except Exception as error:
        return problem_of(error)
    return None


def judged(kind: str) -> Iterator[tuple[Variant, Problem | None]]:
    walk, params, model, base, _ = KINDS[kind]
    for variant in walk.variants(params):
        yield variant, read(model, {**base, **variant.value})


def has_value(variant: Variant) -> bool:
    """Whether there is a field that differs, and more than a null in it."""
    if not variant.path:
        return False
    value = variant.value
    for key in variant.path:
        value = value[key]
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value is not None


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_honoured_or_harmless_or_refused_with_a_code(kind: str) -> None:
    accepted, known = set(), KINDS[kind][-1]
    listed = {name for name, kinds in harmless().items() if kind in kinds}
    for variant, problem in judged(kind):
        path = ".".join(variant.path)
        if not has_value(variant):
            continue
        if problem is None:
            accepted.add(path)
            continue
        assert problem.status == 400, (variant, problem)
        assert problem.code in {"unsupported_parameter", "invalid_value"}
        assert (problem.param or "").partition(".")[0] == variant.path[0]
    assert accepted - known == {
        path for path in accepted if any(f"{path}.".startswith(f"{name}.") for name in listed)
    }
    assert known | listed <= accepted


EXTRAS = {
    "thinking_token_budget": 1,
    "grammar": "root ::= x",
    "stop_regex": "x",
    "cache_salt": "x",
    "guided_json": {},
    "guided_regex": "x",
    "guided_choice": ["x"],
    "guided_grammar": "x",
    "guided_decoding_backend": "x",
    "structured_outputs": {},
    "regex": "x",
    "ebnf": "x",
    "json_schema": {},
    "functions": [],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "skip_special_tokens": False,
    "min_tokens": 1,
    "length_penalty": 1.0,
    "use_beam_search": True,
    "typical_p": 0.5,
    "dry_multiplier": 0.5,
    "mirostat": 1,
    "chat_template_kwargs": {"enable_thinking": False},
    "transforms": ["middle-out"],
    "provider": {"order": ["x"]},
    "plugins": [{"id": "web"}],
}
"""Fields of other servers that this one does not honour."""


@pytest.mark.parametrize("field", EXTRAS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_other_servers_take_is_refused_by_name(kind: str, field: str) -> None:
    walk, params, model, base, _ = KINDS[kind]
    problem = read(model, {**base, **walk.plainest(params), field: EXTRAS[field]})
    assert problem is not None
    assert (problem.status, problem.code, problem.param) == (400, "unsupported_parameter", field)


ODD = [
    *(None, True, 1, 1.5, "x", [], {}, [[]], [1], ["x"], {"type": []}, {"type": {}}, {"role": []}),
    *([{"type": odd}] for odd in ([], {}, 1, "")),
    *([{"role": odd, "content": "x"}] for odd in ([], {}, 1, "")),
    *([{"role": "user", "content": odd}] for odd in ([{"type": []}], [{"type": 1}], [[]])),
    [{"role": "assistant", "content": "x", "reasoning": [1], "reasoning_content": {"a": 1}}],
]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_values_anywhere_are_told_as_what_they_are(kind: str) -> None:
    walk, params, model, base, _ = KINDS[kind]
    plain = walk.plainest(params)
    for field in model.model_fields:
        for odd in ODD:
            problem = read(model, {**base, **plain, field: odd})
            assert problem is None or problem.status in {400, 422}, (field, odd, problem)


def test_defaults_of_other_servers_are_accepted() -> None:
    plain = CHAT_WALK.plainest(CompletionCreateParamsNonStreaming)
    defaults = {"add_generation_prompt": True, "continue_final_message": False}
    assert read(ChatCompletionRequest, {**plain, **dict.fromkeys(EXTRAS), **defaults}) is None
