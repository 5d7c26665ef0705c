"""JSON as the model wrote it: strict, without what another reader would take differently."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MAX_VALUE_DEPTH = 100

NOTHING: Any = object()
"""No value at all; null is one."""


def parse_json(text: str) -> Any:
    """The value of a JSON text, or NOTHING.

    Not JSON: NaN and infinities, numbers out of range, a key twice in one object,
    half a surrogate pair, and what is nested over MAX_VALUE_DEPTH deep.
    """
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_object
        )
    except (ValueError, RecursionError):
        return NOTHING
    return value if _is_shallow(value) and _is_text(value) else NOTHING


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is out of range")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is there twice")
    return value


def _is_text(value: Any) -> bool:
    """Whether all strings can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_VALUE_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False
