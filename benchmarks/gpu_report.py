"""The results of gpu_check as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def show(results: Mapping[str, Any]) -> str:
    """A Markdown table: part, what, result."""
    rows = [
        (part, what, _number(name, value))
        for part, found in results.items()
        for what, name, value in _leaves(found)
    ]
    lines = ["| part | what | result |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _leaves(found: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield ", ".join((*path, name)).replace("_", " "), name, value


def _number(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    units = {"bandwidth": (1e9, "GB/s"), "matrix_rate": (1e12, "TFLOP/s")}
    if name in units:
        scale, unit = units[name]
        return f"{value / scale:.1f} {unit}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
