"""What the bodies of all requests have in common: strict objects, and refusals that say so.

A wrong shape is a validation error. A value that is well formed but that astrai
does not honour is an `unsupported_parameter` error, so nothing a client asks
for is silently ignored. A null stands for a field left out, as in the official
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

UNSUPPORTED = "unsupported_parameter"

KINDS = {
    *("user", "assistant", "system"),
    "ids",
    *("message", "reasoning", "function_call", "function_call_output"),
    *("input_text", "output_text", "input_image"),
    *("text", "image_url", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"),
}
"""What objects in one list of a body are told apart by: roles, and types of content."""


@dataclass(frozen=True, kw_only=True)
class _Only(AfterValidator):
    """A check that leaves a few values, with the JSON Schema of what it leaves."""

    schema: JsonSchemaValue = field(hash=False)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return self.schema


def only(*supported: Any) -> AfterValidator:
    """Refuse every value but these: the ones that ask for nothing astrai lacks."""

    def check(value: Any) -> Any:
        if value not in supported:
            names = " or ".join(repr(each) for each in supported)
            raise PydanticCustomError(UNSUPPORTED, "only {names} is supported", {"names": names})
        return value

    return _Only(check, schema={"enum": list(supported)})


def only_types(*supported: str) -> BeforeValidator:
    """Refuse an object whose `type` is another one, whatever else is in it."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in supported:
            names = " or ".join(map(repr, supported))
            raise PydanticCustomError(
                UNSUPPORTED, "only type {names} is supported", {"names": names}
            )
        return value

    return BeforeValidator(check)


@dataclass(frozen=True, kw_only=True)
class _Wrap(BeforeValidator):
    """What takes a bare value too, with the JSON Schema of that."""

    bare: JsonSchemaValue = field(hash=False)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [self.bare, handler(schema)]}


def wrap(kind: type, wrapper: Callable[[Any], Any]) -> BeforeValidator:
    """Accept a bare value of `kind` where a list is meant."""
    return _Wrap(
        lambda value: wrapper(value) if isinstance(value, kind) else value,
        bare=TypeAdapter(kind).json_schema(),
    )


class Body(BaseModel):
    """A JSON object of a request. Unknown fields are refused; nulls are left out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: each for key, each in value.items() if each is not None}
        return value
