"""`astrai bench`: the speed and the quality of a model on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from astrai_cli.commands.parameters import JsonFlag, with_settings
from astrai_cli.commands.prepare import ModelArgument, prepare
from astrai_cli.commands.progress import show_progress
from astrai_cli.settings import Settings

if TYPE_CHECKING:
    from astrai_cli.benchmark.drafts import DraftMeasurement
    from astrai_cli.benchmark.quality import Quality
    from astrai_cli.benchmark.speed import Measurement


@with_settings("bench", "model", "limits")
def bench(model: ModelArgument, *, as_json: JsonFlag = False, settings: Settings) -> None:
    """Time prefill and decode.

    With --quality also compare with the float32 of the same file; with --speculate, --dflash
    or --synthetic-acceptance also time answers with and without drafts in turn.
    """
    from astrai_cli.benchmark.runs import find_reference, run_drafts, run_quality, run_speed

    config = settings.config
    runnable = prepare(model, config)
    quality = None
    with show_progress() as progress:
        if text := config.bench.quality:
            reference = find_reference(model, runnable, config)
            quality = run_quality(runnable, reference, text, config, progress)
        # They have the most options that can be wrong, which is told before minutes of timing.
        drafts = run_drafts(runnable, config, progress)
        speed = run_speed(runnable, config, progress)
    if as_json:
        report = _report(runnable.backend, speed, quality)
        report["drafts"] = drafts and [_draft_report(each) for each in drafts]
        print(json.dumps(report, indent=2))
    else:
        _print(speed, quality)
        _print_drafts(drafts or [])


def _draft_report(measured: DraftMeasurement) -> dict[str, Any]:
    return {
        **asdict(measured),
        "gain": measured.gain,
        "acceptance": measured.acceptance,
        "accepted_length": measured.accepted_length,
    }


def _report(backend: str, speed: list[Measurement], quality: Quality | None) -> dict[str, Any]:
    return {
        "backend": backend,
        "speed": [
            {
                "kind": each.kind,
                "size": each.size,
                "tokens_per_second": each.median,
                "spread": each.spread,
                "runs": each.runs,
            }
            for each in speed
        ],
        "quality": quality and asdict(quality),
    }


def _print(speed: list[Measurement], quality: Quality | None) -> None:
    from astrai_cli.commands.tables import stdout_console, table

    console = stdout_console()
    rows = [
        (
            f"{each.kind} {each.size}",
            f"{each.median:.1f}",
            f"{min(each.runs):.1f} to {max(each.runs):.1f}",
        )
        for each in speed
    ]
    console.print(table(("", "tokens/s (median)", "spread"), rows))
    if quality:
        facts = {
            "tokens": str(quality.tokens),
            "perplexity": f"{quality.perplexity:.4f}",
            "perplexity of the reference": f"{quality.reference_perplexity:.4f}",
            "KL to the reference, nats a token": f"{quality.kl:.6f}",
            "top-1 agreement": f"{quality.top1_agreement:.4f}",
        }
        console.print(table(("", ""), facts.items()))


def _print_drafts(drafts: list[DraftMeasurement]) -> None:
    from astrai_cli.commands.tables import stdout_console, table

    if not drafts:
        return
    columns = ("drafts", "none", "with", "gain", "accepted", "a draft")
    rows = [
        (
            f"decode {each.batch}",
            f"{median(each.plain):.1f}",
            f"{median(each.drafted):.1f}",
            f"{each.gain:.2f}",
            f"{each.acceptance:.1%}",
            f"{each.accepted_length:.2f}",
        )
        for each in drafts
    ]
    stdout_console().print(table(columns, rows))
