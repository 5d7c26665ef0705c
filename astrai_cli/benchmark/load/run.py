"""What `bench serve` does: check what was asked for, put the load on the server, report."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from astrai_cli.benchmark.load.client import LoadClient, Outcome
from astrai_cli.benchmark.load.generator import closed_loop, open_loop, poisson_moments
from astrai_cli.benchmark.load.plot import check_plot, draw
from astrai_cli.benchmark.load.report import LoadReport, Targets
from astrai_cli.benchmark.load.requests import LoadRequest, make_requests
from astrai_cli.config import LoadConfig, SamplingConfig
from astrai_cli.errors import InvalidInputError
from backends.base import Progress


def run_load(
    model: str | None, config: LoadConfig, sampling: SamplingConfig, progress: Progress
) -> LoadReport:
    """Put the load on the server and draw it where that was asked for.

    Raises InvalidInputError for options that do not go together, ServerError for a
    server that cannot be reached.
    """
    _check(config)
    outcomes = asyncio.run(_send_all(model, config, sampling, make_requests(config), progress))
    if config.plot is not None:
        draw(outcomes, config.plot)
    return LoadReport.of(
        outcomes, Targets(_seconds(config.slo_ttft_ms), _seconds(config.slo_tpot_ms))
    )


def _check(config: LoadConfig) -> None:
    for one, other in (("request_rate", "concurrency"), ("prompts", "prompt_words")):
        if {one, other} <= config.model_fields_set:
            names = " and ".join("--" + name.replace("_", "-") for name in (one, other))
            raise InvalidInputError(f"{names} exclude each other", param=one)
    if config.plot is not None:
        check_plot(config.plot)


async def _send_all(
    model: str | None,
    config: LoadConfig,
    sampling: SamplingConfig,
    requests: list[LoadRequest],
    progress: Progress,
) -> list[Outcome]:
    assert config.url is not None
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        progress("asking the server", len(outcomes) / len(requests))

    client = LoadClient(
        config.url,
        model=model,
        api_key=config.api_key,
        timeout=config.request_timeout,
        fields=_fields(config, sampling),
    )
    duration = math.inf if config.duration is None else config.duration
    async with client:
        if config.request_rate is None:
            await closed_loop(client, requests, config.concurrency, duration, done)
        else:
            moments = poisson_moments(config.request_rate, duration, config.load_seed)
            await open_loop(client, requests, moments, done)
    return outcomes


def _fields(config: LoadConfig, sampling: SamplingConfig) -> dict[str, Any]:
    """Only what was asked for: servers refuse fields they do not know."""
    fields: dict[str, Any] = {}
    if "temperature" in sampling.model_fields_set:
        fields["temperature"] = sampling.temperature
    if config.ignore_eos:
        fields["ignore_eos"] = True
    return fields


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
