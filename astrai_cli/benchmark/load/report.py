"""What a load showed: latencies, throughput, errors, and how much of it was good enough."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrai_cli.benchmark.load.client import Outcome

PERCENTILES = (50, 90, 99)
SERIES = {
    "ttft": "time to first token",
    "tpot": "time per further token",
    "inter_token": "between chunks of text",
    "latency": "whole answer",
}


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds that a good answer keeps to; None for no target."""

    ttft: float | None = None
    tpot: float | None = None

    def are_met(self, outcome: Outcome) -> bool:
        """An answer without the time in question keeps to its target."""
        pairs = ((self.ttft, outcome.ttft), (self.tpot, outcome.tpot))
        return all(
            target is None or seconds is None or seconds <= target for target, seconds in pairs
        )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds: the mean, and percentiles by their number, linear between observations."""

    mean: float
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """None of no values."""
        if not values:
            return None
        at = np.percentile(values, PERCENTILES)
        return cls(float(np.mean(values)), dict(zip(PERCENTILES, map(float, at), strict=True)))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The numbers of a load.

    seconds: from the first request to the end of the last. Throughput counts answers that
    ended well, a second. distributions: by the keys of SERIES, in seconds.
    good_requests: those that met all targets; None without targets.
    """

    requests: int
    completed: int
    errors: Mapping[str, int]
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    distributions: Mapping[str, Distribution | None]
    good_requests: int | None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], targets: Targets) -> LoadReport:
        """outcomes: at least one."""
        well = [outcome for outcome in outcomes if outcome.error is None]
        start = min(outcome.started for outcome in outcomes)
        has_targets = targets != Targets()
        return cls(
            requests=len(outcomes),
            completed=len(well),
            errors=dict(Counter(each.error for each in outcomes if each.error is not None)),
            seconds=max(outcome.ended for outcome in outcomes) - start,
            prompt_tokens=sum(outcome.prompt_tokens for outcome in well),
            completion_tokens=sum(outcome.completion_tokens for outcome in well),
            distributions={
                name: Distribution.of(values) for name, values in series_of(well).items()
            },
            good_requests=sum(map(targets.are_met, well)) if has_targets else None,
        )

    @property
    def requests_per_second(self) -> float:
        return self.completed / self.seconds

    @property
    def output_tokens_per_second(self) -> float:
        return self.completion_tokens / self.seconds

    @property
    def total_tokens_per_second(self) -> float:
        return (self.prompt_tokens + self.completion_tokens) / self.seconds

    @property
    def goodput(self) -> float | None:
        """Requests a second that met all targets."""
        return None if self.good_requests is None else self.good_requests / self.seconds


def series_of(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Seconds by the keys of SERIES."""
    series: dict[str, list[float]] = {name: [] for name in SERIES}
    for outcome in outcomes:
        if outcome.ttft is not None:
            series["ttft"].append(outcome.ttft)
        if outcome.tpot is not None:
            series["tpot"].append(outcome.tpot)
        series["inter_token"] += (
            later - earlier for earlier, later in itertools.pairwise(outcome.text_times)
        )
        series["latency"].append(outcome.latency)
    return series
