"""Progress on stderr: a bar in a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.base import Progress


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A Progress callback; the bar goes away when the block ends."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield update
    else:
        yield _stage_lines()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = None

        def update(what: str, fraction: float) -> None:
            nonlocal task
            # The clock and the bar appear only once there is something to wait for.
            if task is None:
                task = progress.add_task(what, total=1.0)
            progress.update(task, description=what, completed=fraction)

        yield update


def _stage_lines() -> Progress:
    stage = None

    def update(what: str, fraction: float) -> None:
        nonlocal stage
        if what != stage:
            stage = what
            print(f"astrai: {what}", file=sys.stderr, flush=True)

    return update
