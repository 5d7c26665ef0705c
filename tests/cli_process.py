"""The `astrai` command as users run it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ASTRAI = str(Path(sys.executable).with_name("astrai"))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the options of whoever runs the tests, and with one thread.

    Tiny models gain nothing from more, and lose much where cores are busy.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASTRAI_")}
    return {**kept, "ASTRAI_THREADS": "1", **(extra or {})}


def astrai(
    *arguments: str | Path,
    cwd: Path,
    question: str = "",
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; `question` is its stdin."""
    return subprocess.run(
        [ASTRAI, *map(str, arguments)],
        cwd=cwd,
        input=question,
        env=environment(variables),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
