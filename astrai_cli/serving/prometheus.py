"""The Prometheus text format, version 0.0.4: what a scraper reads.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram", "summary"]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what follows the family's name, the labels, the value."""

    value: float
    labels: Labels = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


class Histogram:
    """Counts observations by upper bounds, each of which belongs to its bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> list[Sample]:
        """The buckets, each with those below it in it, the sum and the count."""
        totals = list(accumulate(self._counts))
        ends = [*map(_number, self._bounds), "+Inf"]
        buckets = [
            Sample(total, (("le", end),), "_bucket")
            for end, total in zip(ends, totals, strict=True)
        ]
        return [*buckets, Sample(self._sum, suffix="_sum"), Sample(totals[-1], suffix="_count")]


def render(families: Iterable[Family]) -> str:
    """The page of these families."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += (
            f"{family.name}{sample.suffix}{_braced(sample.labels)} {_number(sample.value)}"
            for sample in family.samples
        )
    return "\n".join(lines) + "\n"


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(value)
