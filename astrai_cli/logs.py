"""Logging of a process: one line an event on stderr, which is never data."""

from __future__ import annotations

import logging
import sys
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logging(level: LogLevel, process: str) -> None:
    """Write log lines of `level` and above, each with the name of the process it is from."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s %(levelname)s {process} %(name)s: %(message)s",
        force=True,
    )
    # The web server's lines on its own start and stop tell users nothing new.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
