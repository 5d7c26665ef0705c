"""One side of a comparison: a process of its own that does one piece of work after the other.

It is asked by a line of JSON on its stdin and answers by one on its stdout, so that
two sides can take turns and neither waits for the other to start. Needs nothing but
Python: a side may run under an interpreter that has no astrai.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

Question = dict[str, Any]
Answer = dict[str, Any]


def answer_questions(work: Callable[[Question], Answer]) -> None:
    """The peer's own loop: do what each line asks, until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), flush=True)


class Peer:
    """A running peer, from the side that asks. A context manager: leaving it ends the process."""

    def __init__(self, python: str, script: Path, settings: dict[str, Any]) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [python, str(script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> Answer:
        """Raises RuntimeError where the peer ended instead of answering."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"{self._script.name} ended with {code} when asked {question}")
        answer: Answer = json.loads(line)
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()
