"""The distributions of a load's times, as a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from astrai_cli.benchmark.load.client import Outcome
from astrai_cli.benchmark.load.report import PERCENTILES, SERIES, series_of
from astrai_cli.errors import InvalidInputError, install_command


def check_plot(path: Path) -> None:
    """Raises InvalidInputError where `path` could not be drawn to, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInputError(f"--plot needs matplotlib: {install_command('plot')}", param="plot")
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise InvalidInputError(
            f"--plot: {path} is not the name of a .png file in a folder that exists", param="plot"
        )


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the share of observations up to each time, one panel a series, as a PNG file.

    Raises InvalidInputError where the file cannot be written.
    """
    # The figure's own canvas draws: no display, and no state that others would see.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    well = [outcome for outcome in outcomes if outcome.error is None]
    for axes, (name, values) in zip(
        figure.subplots(2, 2).flat, series_of(well).items(), strict=True
    ):
        milliseconds = 1000 * np.sort(values)
        axes.plot(milliseconds, np.arange(1, len(values) + 1) / max(1, len(values)))
        for percentile in PERCENTILES if values else ():
            at = float(np.percentile(milliseconds, percentile))
            axes.axvline(at, linestyle=":", color="gray")
            axes.annotate(f"p{percentile} {at:.4g}", (at, 0.02), rotation=90, ha="right")
        axes.set(title=SERIES[name], xlabel="milliseconds", ylabel="share of all", ylim=(0, 1.02))
    try:
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise InvalidInputError(f"--plot: {path}: {error.strerror}", param="plot") from error
