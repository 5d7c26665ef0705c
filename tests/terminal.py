"""A real terminal to run programs in: a tmux server of its own."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cli_process import environment

PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05


class Terminal:
    """One window of 80 columns; what has scrolled off is still read."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
            env=environment({"LC_ALL": "C.UTF-8"}),
        )
        return done.stdout

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, C-c, M-Enter, Up."""
        self.tmux("send-keys", *keys)

    def say(self, line: str) -> None:
        self.type(line)
        self.press("Enter")

    def text(self) -> str:
        """Everything shown so far, trailing blanks left out."""
        shown = self.tmux("capture-pane", "-p", "-S", "-")
        return "\n".join(line.rstrip() for line in shown.splitlines()).rstrip()

    def wait_for(self, wanted: str, times: int = 1) -> str:
        """The text once it has `wanted` at least `times` times."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (shown := self.text()).count(wanted) < times:
            assert time.monotonic() < deadline, f"{wanted!r} was never shown in:\n{shown}"
            time.sleep(POLL_SECONDS)
        return shown


@contextmanager
def terminal(
    command: Sequence[str | Path],
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    height: int = 20,
) -> Iterator[Terminal]:
    """Run `command` in a terminal; when it ends, `ended CODE` is shown."""
    with tempfile.TemporaryDirectory() as folder:
        window = Terminal(Path(folder) / "tmux")
        assignments = [f"{name}={value}" for name, value in (variables or {}).items()]
        line = shlex.join(["env", *assignments, *map(str, command)])
        window.tmux(
            *("new-session", "-d", "-x", "80", "-y", str(height), "-c", str(cwd)),
            f"{line}; echo ended $?; exec sleep 600",
        )
        try:
            yield window
        finally:
            window.tmux("kill-server")
