"""What validation may cost is bounded, whatever the schema and the model's output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astrai_cli.serving.parsers import InvalidToolOutputError, ToolCall, parse_output


def call(schema: dict[str, Any], n_calls: int = 1, **texts: str) -> tuple[ToolCall, ...]:
    parameters = "".join(
        f'<atem:parameter name="{name}">{text}</atem:parameter>\n' for name, text in texts.items()
    )
    invocation = f'<atem:invoke name="f">\n{parameters}</atem:invoke>\n'
    return parse_output(
        "atem",
        f" to=f<|message|><atem:function_calls>{invocation * n_calls}</atem:function_calls><|eot|>",
        [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    ).tool_calls


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", r"^(\w+\s?)*$"])
def test_patterns_stop_within_their_time(pattern: str) -> None:
    text = "a" * 50_000 + "!"
    for schema in (
        {"properties": {"a": {"type": "string", "pattern": pattern}}},
        {"properties": {"a": {"not": {"pattern": pattern}}}},
        {"properties": {"a": {"type": "object", "patternProperties": {pattern: {}}}}},
    ):
        value = json.dumps({text: 1}) if "object" in str(schema) else text
        with pytest.raises(InvalidToolOutputError, match=r"0\.1 seconds|do not match"):
            call(schema, a=value)


def test_names_of_parameters_are_searched_within_the_time() -> None:
    with pytest.raises(InvalidToolOutputError, match=r"0\.1 seconds"):
        call({"patternProperties": {"(a+)+$": {}}}, **{"a" * 1000 + "!": "1"})


def test_calls_share_one_budget() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    text = json.dumps([1] * 5000)
    assert len(call(schema, 2, a=text)) == 2
    with pytest.raises(InvalidToolOutputError, match="budget"):
        call(schema, 20, a=text)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "integer"}}, [1] * 50_000),
        ({"uniqueItems": True}, [[i] for i in range(40_000)]),
        ({"enum": [[1], "x"]}, [[1]] * 70_000),
        ({"const": {"a": 1}}, {str(i): i for i in range(70_000)}),
        ({"unevaluatedItems": {"type": "integer"}}, [1] * 40_000),
        ({"anyOf": [{"items": {"const": i}} for i in range(100)]}, [99] + [1] * 1000),
        ({"contains": {"anyOf": [{"const": i} for i in range(1000)]}}, [2000] * 100),
    ],
)
def test_large_values_end_in_the_budget(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(InvalidToolOutputError, match=r"budget|do not match"):
        call(
            {"properties": {"a": {"allOf": [{"type": ["array", "object"]}, schema]}}},
            a=json.dumps(value),
        )


def test_unique_items_takes_no_pairs() -> None:
    # Integers that Python hashes alike; compared in pairs they would take minutes.
    alike = [i * (2**61 - 1) for i in range(20_000)]
    assert call({"properties": {"a": {"uniqueItems": True}}}, a=json.dumps(alike))


def test_a_recursive_schema_ends_in_a_deep_value() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}},
    }
    assert call(schema, a="[" * 40 + "]" * 40)
    with pytest.raises(InvalidToolOutputError, match="deep"):
        call(schema, a="[" * 90 + "]" * 90)
    with pytest.raises(InvalidToolOutputError, match="do not match"):
        call({"properties": {"a": {"type": "array"}}}, a="[" * 200 + "]" * 200)
