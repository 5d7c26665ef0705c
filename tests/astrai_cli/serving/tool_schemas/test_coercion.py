"""Texts of parameters become the values that their schemas declare."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_cli.serving.tool_schemas import ToolSet
from astrai_cli.serving.tool_schemas.budget import Budget, BudgetExhaustedError, structural_key


def read(schema: dict[str, Any], **texts: str) -> Any:
    """The arguments as JSON, so that 5 and 5.0 differ; None where they are refused."""
    tools = ToolSet([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    arguments = tools.tools[0].coercion.read(texts, Budget())
    return None if arguments is None else json.dumps(arguments)


def one(declared: Any, text: str) -> Any:
    read_back = read({"type": "object", "properties": {"a": declared}}, a=text)
    return None if read_back is None else read_back[len('{"a": ') : -1]


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ({"type": "string"}, ' {"a": 1}\n', '" {\\"a\\": 1}\\n"'),
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, '"quoted"', '"\\"quoted\\""'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": "null"}, "null", '"null"'),
        ({"type": "integer"}, "+5", "5"),
        ({"type": "integer"}, "007", "7"),
        ({"type": "integer"}, " -3\n", "-3"),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "1e3", "1000"),
        ({"type": "integer"}, "5.5", None),
        ({"type": "integer"}, "٥", None),
        ({"type": "integer"}, "1_000", None),
        ({"type": "integer"}, "9" * 5000, None),
        ({"type": "number"}, ".5", "0.5"),
        ({"type": "number"}, "5.", "5.0"),
        ({"type": "number"}, "5", "5"),
        ({"type": "number"}, "1e999", None),
        ({"type": "number"}, "NaN", None),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "boolean"}, "True", None),
        ({"type": "null"}, "null", "null"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, "05", '"05"'),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, '{"b": 1}', '{"b": 1}'),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, '{"b": 1', '"{\\"b\\": 1"'),
        ({"type": ["string", "integer"], "minimum": 9}, "5", '"5"'),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 9}]}, "5", '"5"'),
        ({"enum": ["1", 2]}, "1", '"1"'),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", "[1, 2]"),
        ({"type": "array", "items": {"type": "integer"}}, '["1"]', None),
        ({"type": "object"}, '{"b": 1, "b": 2}', None),
        ({"type": "array"}, "[" * 5000 + "]" * 5000, None),
        ({}, "text", '"text"'),
        ({}, "[1]", "[1]"),
        (True, "5", "5"),
        (False, "5", None),
        ({"$ref": "#/properties/a/$defs/b", "$defs": {"b": {"type": "integer"}}}, "07", "7"),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, "07", "7"),
        ({"if": {}, "then": {"type": "integer"}, "else": False}, "07", "7"),
    ],
)
def test_one_parameter(declared: Any, text: str, value: str | None) -> None:
    assert one(declared, text) == value


def branch(kind: str, value: str, **more: Any) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, "value": {"type": value}, **more}
    return {"type": "object", "properties": properties, "required": ["kind", "value"]}


def test_alternatives_hold_for_all_parameters_together() -> None:
    for branches in ([("a", "string"), ("b", "integer")], [("b", "integer"), ("a", "string")]):
        for keyword in ("oneOf", "anyOf"):
            schema = {keyword: [branch(kind, value) for kind, value in branches]}
            assert read(schema, kind="a", value="5") == '{"kind": "a", "value": "5"}'
            assert read(schema, kind="b", value="5") == '{"kind": "b", "value": 5}'
            assert read(schema, kind="c", value="5") is None


def test_conditions_choose_the_types() -> None:
    schema = {
        "properties": {"unit": {"enum": ["text", "count"]}},
        "if": {"properties": {"unit": {"const": "count"}}},
        "then": {"properties": {"value": {"type": "integer"}}},
        "else": {"properties": {"value": {"type": "string"}}},
    }
    assert read(schema, unit="count", value="5") == '{"unit": "count", "value": 5}'
    assert read(schema, unit="text", value="5") == '{"unit": "text", "value": "5"}'


def test_dependents_choose_the_types() -> None:
    schema = {"dependentSchemas": {"n": {"properties": {"value": {"type": "string"}}}}}
    assert read(schema, value="5") == '{"value": 5}'
    assert read(schema, n="1", value="5") == '{"n": 1, "value": "5"}'


def test_the_alternative_that_declares_the_parameters_comes_first() -> None:
    schema = {"anyOf": [{"properties": {"other": {}}}, {"properties": {"a": {"type": "string"}}}]}
    assert read(schema, a="5") == '{"a": "5"}'


def test_undeclared_parameters_are_read_as_maps_declare_them() -> None:
    schema = {
        "patternProperties": {"^n_": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    assert read(schema, n_a="07", b="07") == '{"n_a": 7, "b": "07"}'
    assert read({"additionalProperties": False}, b="1") is None


def test_the_whole_object_is_validated() -> None:
    assert read({"required": ["a"]}) is None
    assert read({"maxProperties": 1}, a="1", b="2") is None


def test_tries_are_bounded() -> None:
    # Each parameter has two readings, and only one of the 2 ** 12 combinations is right.
    names = [f"p{i}" for i in range(12)]
    schema = {
        "properties": {name: {"enum": ["1", 1]} for name in names},
        "not": {"anyOf": [{"properties": {name: {"type": "integer"}}} for name in names]},
    }
    with pytest.raises(BudgetExhaustedError):
        read(schema, **dict.fromkeys(names, "1"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 1.5, "", "1", "a:"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


def equal(one: Any, two: Any) -> bool:
    """Equality as JSON Schema defines it."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return bool(one == two)


@settings(max_examples=150, deadline=None)
@given(VALUES, VALUES)
def test_keys_are_equal_as_their_values_are(one: Any, two: Any) -> None:
    assert (structural_key(one, Budget()) == structural_key(two, Budget())) is equal(one, two)
