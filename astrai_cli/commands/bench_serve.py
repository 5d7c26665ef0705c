"""`astrai bench serve`: the speed of a running server, as its clients see it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrai_cli.commands.parameters import JsonFlag, with_settings
from astrai_cli.commands.progress import show_progress
from astrai_cli.errors import InvalidInputError, ServerError
from astrai_cli.settings import Settings

if TYPE_CHECKING:
    from astrai_cli.benchmark.load.report import Distribution, LoadReport


@with_settings("load", "temperature")
def bench_serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Id of the server's model; its first when left out."),
    ] = None,
    *,
    as_json: JsonFlag = False,
    settings: Settings,
) -> None:
    """Put load on an OpenAI-compatible server and tell how long its clients wait."""
    config = settings.config
    if config.load.url is None:
        raise InvalidInputError("bench serve needs the --url of a server", param="url")
    from astrai_cli.benchmark.load.run import run_load

    with show_progress() as progress:
        report = run_load(model, config.load, config.sampling, progress)
    if as_json:
        print(json.dumps(_as_dict(report), indent=2))
    else:
        _print(report)
    if not report.completed:
        raise ServerError(f"none of {report.requests} requests was answered: {_errors(report)}")


def _as_dict(report: LoadReport) -> dict[str, Any]:
    """Times in seconds, percentiles as p50, p90, p99."""
    return {
        **asdict(report),
        "requests_per_second": report.requests_per_second,
        "output_tokens_per_second": report.output_tokens_per_second,
        "total_tokens_per_second": report.total_tokens_per_second,
        "goodput": report.goodput,
        "distributions": {
            name: each
            and {"mean": each.mean, **{f"p{n}": at for n, at in each.percentiles.items()}}
            for name, each in report.distributions.items()
        },
    }


def _print(report: LoadReport) -> None:
    from astrai_cli.benchmark.load.report import PERCENTILES, SERIES
    from astrai_cli.commands.tables import stdout_console, table

    console = stdout_console()
    facts = {
        "requests answered": f"{report.completed} of {report.requests}",
        "errors": _errors(report) or "none",
        "seconds": f"{report.seconds:.2f}",
        "requests/s": f"{report.requests_per_second:.2f}",
        "tokens/s of answers": f"{report.output_tokens_per_second:.1f}",
        "tokens/s with prompts": f"{report.total_tokens_per_second:.1f}",
    }
    if report.goodput is not None:
        share = report.good_requests or 0
        facts["goodput, requests/s"] = f"{report.goodput:.2f} ({share} of {report.requests})"
    console.print(table(("", ""), facts.items()))
    columns = ("milliseconds", "mean", *(f"p{percentile}" for percentile in PERCENTILES))
    rows = [(SERIES[name], *_cells(each)) for name, each in report.distributions.items()]
    console.print(table(columns, rows))


def _cells(distribution: Distribution | None) -> tuple[str, ...]:
    if distribution is None:
        return ()
    values = (distribution.mean, *distribution.percentiles.values())
    return tuple(f"{1000 * value:.2f}" for value in values)


def _errors(report: LoadReport) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
