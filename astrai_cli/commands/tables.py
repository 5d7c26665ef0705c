"""Tables on stdout, for people to read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from astrai_cli.chat.terminal import harmless

_PIPED_WIDTH = 200


def stdout_console() -> Console:
    """stdout, as wide as the terminal, or wide enough for a digest where it is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Rows of text, which may come from a file and is shown without its control characters."""
    result = Table(box=box.SIMPLE, show_header=any(columns))
    for column in columns:
        result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*(Text(harmless(cell)) for cell in row))
    return result
