"""Options as users meet them: names, allowed values in words, and defaults.

Everything here is read from the config model's fields, for the command line,
error messages and the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from astrai_cli.config import Config, Group

ENV_PREFIX = "ASTRAI_"


@dataclass(frozen=True)
class Option:
    """One option of the config model, and every group it stands in."""

    name: str
    groups: tuple[str, ...]
    field: FieldInfo

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        return self.field.description or ""

    @property
    def type(self) -> Any:
        """The annotation without the `None` that stands for "left out"."""
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, UnionType):
            annotation = next(arm for arm in get_args(annotation) if arm is not NoneType)
        return _unpack(annotation)[0]

    @property
    def is_number(self) -> bool:
        """Whether it takes a number or several."""
        return self._element in (int, float)

    @property
    def is_repeatable(self) -> bool:
        """Whether its flag may be given several times, with a text each."""
        return get_origin(self.type) is tuple and self._element is str

    @property
    def _element(self) -> Any:
        """The type itself, or that of the items where it takes several."""
        is_several = get_origin(self.type) is tuple
        return _unpack(get_args(self.type)[0])[0] if is_several else self.type

    @property
    def is_secret(self) -> bool:
        """Whether its value must not be shown."""
        return self.type is SecretStr

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def allowed(self) -> str:
        """The values it takes, as a noun phrase: "a whole number from 0 to 65535"."""
        if self.type is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if get_origin(self.type) is tuple:
            _, *bounds = _unpack(get_args(self.type)[0])
            noun = f"{_NOUNS[self._element][1]} {_range(bounds)}".rstrip()
            return f"{noun}, separated by commas"
        return f"{_NOUNS[self.type][0]} {_range(self.field.metadata)}".rstrip()

    @property
    def default(self) -> str | None:
        """The default as a user would type it; None where leaving it out has its own meaning."""
        value = self.field.default
        if self.field.default_factory is not None or value is None:
            return None
        return spell(value) or None


_NOUNS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    SecretStr: ("text in visible ASCII", "texts in visible ASCII"),
    Path: ("a path", "paths"),
}


def _unpack(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)


def _range(constraints: Iterable[object]) -> str:
    low = high = ""
    for constraint in constraints:
        match constraint:
            case Ge(ge=bound):
                low = f"from {bound}"
            case Gt(gt=bound):
                low = f"above {bound}"
            case Le(le=bound):
                high = f"to {bound}"
            case Lt(lt=bound):
                high = f"below {bound}"
    if low.startswith("above") and high.startswith("to"):
        high = high.replace("to", "and up to", 1)
    return f"{low} {high}".strip()


def spell(value: object) -> str:
    """A value as it is written in a flag or variable; secrets stay hidden."""
    if isinstance(value, tuple | list):
        return ",".join(spell(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def group_types() -> dict[str, type[Group]]:
    """The groups of the config model, by name."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group)
    }


@cache
def all_options() -> dict[str, Option]:
    """Every option by name, in the order of the config model."""
    found: dict[str, Option] = {}
    for group, model in group_types().items():
        for name, field in model.model_fields.items():
            groups = (*found[name].groups, group) if name in found else (group,)
            found[name] = Option(name, groups, field)
    return found
