"""JSON Schemas of requests and answers, true to what the server takes and sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

REF = "#/components/schemas/{model}"
_NULL = {"type": "null"}


class _Schemas(GenerateJsonSchema):
    """Says of requests that a null stands for a field left out, and of answers that they are all.

    Requests are pydantic models, answers typed dicts.
    """

    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        field = super().model_field_schema(schema)
        return field if self.field_is_required(schema, total=True) else _or_null(field)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return {**super().typed_dict_schema(schema), "additionalProperties": False}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        if described.get("default", 0) is None:
            del described["default"]
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:
        # A field's name in capitals tells nothing new.
        return False


def _or_null(field: JsonSchemaValue) -> JsonSchemaValue:
    arms = field.get("anyOf", [{key: each for key, each in field.items() if key != "default"}])
    outside = {"default": field["default"]} if "default" in field else {}
    return {"anyOf": arms if _NULL in arms else [*arms, _NULL], **outside}


def describe(types: Iterable[Any]) -> tuple[dict[Any, JsonSchemaValue], dict[str, Any]]:
    """A schema for each type, and the components that they refer to."""
    mode: Literal["validation"] = "validation"
    inputs = [(each, mode, TypeAdapter[Any](each)) for each in types]
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=REF, schema_generator=_Schemas)
    return {each: schema for (each, _), schema in schemas.items()}, shared["$defs"]
