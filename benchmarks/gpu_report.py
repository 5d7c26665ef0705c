"""The results of gpu_check as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DRY_RUN = "Dry run on a processor, of a tiny model: that all parts run, and nothing of any GPU."


def show(results: Mapping[str, Any]) -> str:
    """A Markdown table: part, what, result."""
    is_dry = results["facts"]["dry_run"]
    rows = [
        (part, what, _number(name, value))
        for part, found in results.items()
        for what, name, value in _leaves(found)
    ]
    head = "| part | what | dry run |" if is_dry else "| part | what | result |"
    lines = [head, "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([_DRY_RUN, "", *lines] if is_dry else lines)


def _leaves(found: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield ", ".join((*path, name)).replace("_", " "), name, value


def _number(name: str, value: Any) -> str:
    if value is None:
        return "n/a"
    if not isinstance(value, float):
        return str(value)
    units = {"bandwidth": (1e9, "GB/s"), "matrix_rate": (1e12, "TFLOP/s")}
    if name in units:
        scale, unit = units[name]
        return f"{value / scale:.1f} {unit}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
