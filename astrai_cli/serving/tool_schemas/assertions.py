"""Keywords that judge a value by itself, without schemas inside them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sized
from fractions import Fraction
from typing import Any

import regex

from astrai_cli.serving.tool_schemas.budget import Budget, structural_key
from astrai_cli.serving.tool_schemas.evaluation import Check, Evaluated


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    return is_number(value) and (isinstance(value, int) or value.is_integer())


TYPES: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "null": lambda value: value is None,
    "number": is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Raises regex.error for one that is no pattern, RecursionError for one too deep."""
    return regex.compile(pattern)


def _type(names: str | list[str]) -> Check:
    tests = [TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    return lambda value, budget, seen: any(test(value) for test in tests)


def _enum(values: list[Any]) -> Check:
    # The schema's own values were counted when it was checked.
    keys = {structural_key(each, Budget()) for each in values}
    return lambda value, budget, seen: structural_key(value, budget) in keys


def _pattern(pattern: str) -> Check:
    compiled = compile_pattern(pattern)
    return lambda value, budget, seen: not isinstance(value, str) or budget.search(compiled, value)


def _multiple_of(divisor: float) -> Check:
    """By the decimal spelling: 0.0075 is a multiple of 0.0001."""
    exact = Fraction(repr(divisor))

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not is_number(value):
            return True
        return (Fraction(repr(value)) / exact).denominator == 1

    return check


def _unique_items(wanted: bool) -> Check:
    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not wanted or not isinstance(value, list):
            return True
        return len({structural_key(each, budget) for each in value}) == len(value)

    return check


def _required(names: list[str]) -> Check:
    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, dict):
            return True
        budget.spend(len(names))
        return all(name in value for name in names)

    return check


def _dependent_required(names: dict[str, list[str]]) -> Check:
    checks = {name: _required(needed) for name, needed in names.items()}

    def check(value: Any, budget: Budget, seen: Evaluated | None) -> bool:
        if not isinstance(value, dict):
            return True
        budget.spend(len(checks))
        return all(each(value, budget, seen) for name, each in checks.items() if name in value)

    return check


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[float], Check]:
    return lambda bound: lambda value, budget, seen: not is_number(value) or compare(value, bound)


def _sized(kind: type[Sized], compare: Callable[[Any, Any], bool]) -> Callable[[float], Check]:
    return lambda bound: (
        lambda value, budget, seen: not isinstance(value, kind) or compare(len(value), bound)
    )


ASSERTIONS: dict[str, Callable[[Any], Check]] = {
    "const": lambda value: _enum([value]),
    "dependentRequired": _dependent_required,
    "enum": _enum,
    "exclusiveMaximum": _compared(operator.lt),
    "exclusiveMinimum": _compared(operator.gt),
    "maxItems": _sized(list, operator.le),
    "maxLength": _sized(str, operator.le),
    "maxProperties": _sized(dict, operator.le),
    "maximum": _compared(operator.le),
    "minItems": _sized(list, operator.ge),
    "minLength": _sized(str, operator.ge),
    "minProperties": _sized(dict, operator.ge),
    "minimum": _compared(operator.ge),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "required": _required,
    "type": _type,
    "uniqueItems": _unique_items,
}
