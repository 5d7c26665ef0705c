"""Which schemas are taken, and which are refused before anything is generated."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing import tool

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.tool_schemas import InvalidToolSchemaError, ToolSet
from astrai_cli.serving.tool_schemas.budget import Budget
from astrai_cli.serving.tool_schemas.dialects import (
    DRAFT_7,
    DRAFT_2019_09,
    DRAFT_2020_12,
    Dialect,
    SchemaRefusedError,
)
from astrai_cli.serving.tool_schemas.tools import compile_schema

CASES = Path(__file__).parents[3] / "data" / "tool-schema-cases.jsonl"
DRAFT_7_URI = "http://json-schema.org/draft-07/schema#"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def doubling(depth: int) -> dict[str, Any]:
    """A schema of a few references that stands for 2 ** depth schemas."""
    twice = {
        f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}, "contains": {"$ref": f"#/$defs/d{i + 1}"}}
        for i in range(depth)
    }
    return {"$defs": {**twice, f"d{depth}": {}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def choices(n: int) -> dict[str, Any]:
    return {"anyOf": [{"required": [f"p{i}"]} for i in range(n)]}


@pytest.mark.parametrize(
    "case",
    [json.loads(line) for line in CASES.read_text("utf-8").splitlines()],
    ids=lambda case: case["id"],
)
def test_cases(case: dict[str, Any]) -> None:
    if case["accepted"]:
        assert ToolSet(case["tools"])
    else:
        with pytest.raises(InvalidToolSchemaError) as refused:
            ToolSet(case["tools"])
        assert (refused.value.code, refused.value.status) == (case["error"], 400)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {"$id": "x"}}}, "$id is supported at the root"),
        ({"$id": "http://x/#a"}, "'$id' is malformed"),
        ({"$schema": DRAFT_7_URI, "$id": "#a"}, "must not have a fragment"),
        ({"properties": {"a": {"$schema": DRAFT_7_URI}}}, "$schema must not change"),
        ({"$schema": "http://json-schema.org/draft-06/schema#"}, "$schema is"),
        ({"$schema": "http://json-schema.org/schema#"}, "$schema is"),
        ({"$schema": 7}, "$schema is"),
        ({"$dynamicRef": "#a"}, "$dynamicRef is not supported"),
        ({"$defs": {"a": {"$recursiveRef": "#"}}}, "$recursiveRef is not supported"),
        ({"$ref": "other.json"}, "leads outside"),
        ({"$ref": "http://[bad"}, "leads outside"),
        ({"$ref": "#/$defs/a"}, "leads to no schema"),
        ({"$ref": "#nowhere"}, "leads to no schema"),
        ({"enum": [1], "$ref": "#/enum/0"}, "leads to no schema"),
        ({"x": {"type": "strin"}, "$ref": "#/x"}, "'type' is malformed"),
        ({"$defs": {"unused": {"type": "strin"}}}, "'type' is malformed"),
        ({"items": [{}]}, "'items' is malformed"),
        ({"dependentSchemas": {"a": {"minLength": -1}}}, "'minLength' is malformed"),
        ({"patternProperties": {"(": {}}}, "does not compile"),
        ({"pattern": "(" * 3000 + ")" * 3000}, "does not compile"),
        ({"pattern": "a{100000}"}, "budget"),
        ({"pattern": "a{99999999999999999999}"}, "budget"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}, "is there twice"),
        ({"$ref": "#"}, "for ever"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "for ever"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"not": {"$ref": "#/$defs/b"}, "items": {"$ref": "#"}},
                    "b": {"if": {"$ref": "#/$defs/a"}},
                },
            },
            "for ever",
        ),
        ({"pattern": "(?:a{2000}){2000}"}, "budget"),
        ({"pattern": "(?:(?:.?){3000}){3000}x"}, "budget"),
        ({"patternProperties": {"((a{99}){99}){99}": {}}}, "budget"),
        ({"pattern": "(?au)a"}, "does not compile"),
        ({"multipleOf": float("inf")}, "finite"),
        ({"maximum": float("nan")}, "finite"),
        ({"enum": [[float("inf")]]}, "finite"),
        (nested(70), "nested"),
        ({"enum": [nested(70)]}, "nested"),
        ({"required": nested(5000)}, "'required' is malformed"),
        (doubling(12), "expands"),
        (choices(1024), "alternatives"),
        ({"allOf": [choices(32), choices(32)]}, "alternatives"),
        ({"enum": list(range(70_000))}, "budget"),
        ({"properties": {f"p{i}": {} for i in range(70)}, **choices(1000)}, "budget"),
    ],
)
def test_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidToolSchemaError, match="tool 'f'") as refused:
        ToolSet([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema#"},
        {"$schema": DRAFT_7_URI, "items": [{"type": "string"}], "definitions": {}},
        {"$id": "http://x/tool.json", "$ref": "tool.json#/$defs/a", "$defs": {"a": {}}},
        {
            "$id": "http://x/tool.json",
            "$ref": "http://x/tool.json#a",
            "$defs": {"a": {"$anchor": "a"}},
        },
        {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
        {"enum": [{"$id": "x", "$ref": "y"}], "default": {"$dynamicRef": "z"}},
        {"pattern": r"^\p{L}+(?<n>x)$"},
        {"pattern": "^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        {"pattern": r"^[\]{9}({2}]{1,40}\{[0-9]{1,3}\}(?:[a-z]{0,61}){0,100}$"},
        {"properties": {"next": {"$ref": "#"}}},
        nested(50),
        doubling(10),
        choices(1023),
    ],
)
def test_taken(schema: dict[str, Any]) -> None:
    assert ToolSet([{"type": "function", "function": {"name": "f", "parameters": schema}}])


def test_missing_parameters_are_none() -> None:
    tools = ToolSet([{"type": "function", "function": {"name": "f"}}])
    assert tools.tools[0].coercion.read({}, Budget()) == {}


def test_parameters_must_be_an_object() -> None:
    for parameters in ([], True, "x"):
        with pytest.raises(InvalidToolSchemaError, match="must be an object"):
            ToolSet([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def test_all_tools_share_the_budget() -> None:
    large = {f"p{i}": {"type": "string"} for i in range(2000)}
    ToolSet([tool("f", large)])
    with pytest.raises(InvalidToolSchemaError, match="budget"):
        ToolSet([tool(f"f{i}", large) for i in range(20)])


def test_names() -> None:
    tools = ToolSet([tool("flat"), tool("a.b")])
    assert [(each.name, each.alias) for each in tools.tools] == [
        ("flat", "flat.flat"),
        ("a.b", "a.b"),
    ]
    for name in ("flat", "flat.flat"):
        found = tools.find(name)
        assert found is not None
        assert found.name == "flat"
    assert tools.find("flat.other") is None


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a.a"), ("a b",), ("",), ('"',), ("x" * 65,)])
def test_refused_names(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        ToolSet([tool(name) for name in names])


KEYWORDS = [
    *(
        "type",
        "enum",
        "const",
        "required",
        "properties",
        "items",
        "minimum",
        "maxLength",
        "pattern",
    ),
    *("dependentRequired", "dependencies", "uniqueItems", "anyOf", "prefixItems", "minContains"),
    *("additionalProperties", "multipleOf", "title", "format", "if", "propertyNames", "$anchor"),
]
VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 1.5, "", "a", "string", "object", [], {}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "type", "items"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=3), st.integers(0, 2))
def test_what_is_malformed_is_so_by_the_official_meta_schemas(
    schema: dict[str, Any], which: int
) -> None:
    dialect: Dialect = (DRAFT_7, DRAFT_2019_09, DRAFT_2020_12)[which]
    official: Any = (
        jsonschema.Draft7Validator,
        jsonschema.Draft201909Validator,
        jsonschema.Draft202012Validator,
    )[which]
    well_formed = official(official.META_SCHEMA).is_valid(schema)
    context = nullcontext() if well_formed else pytest.raises(SchemaRefusedError)
    with context:
        compile_schema(schema, Budget(), dialect)
