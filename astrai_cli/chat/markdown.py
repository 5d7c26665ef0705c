"""Markdown that is rendered while it is still being written."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown

from astrai_cli.chat.terminal import LiveLines, harmless

_REDRAW_SECONDS = 0.05
# The share of time left for the model: a redraw that took long waits as long times this.
_REST = 9


# The syntax that rich's own renderer reads.
_PARSER = MarkdownIt().enable(["strikethrough", "table"])


def split_blocks(text: str) -> tuple[list[str], str]:
    """Cut growing Markdown into its finished top-level blocks and the open rest.

    A block is finished once a whole line after it starts another: until then a
    further line may still belong to it (a list goes on, a paragraph becomes a heading).
    """
    *lines, _ = text.split("\n")
    starts = [
        token.map[0]
        for token in _PARSER.parse("\n".join(lines))
        if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return [], text
    bounds = [0, *starts[1:]]
    finished = [
        "".join(line + "\n" for line in lines[start:end]) for start, end in pairwise(bounds)
    ]
    return finished, text[sum(map(len, finished)) :]


class MarkdownWriter:
    """Shows an answer on a terminal as it grows: finished blocks once, the rest live."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = LiveLines(self._emit)
        self._width = console.width
        self._rest = ""
        self._first = True
        self._next_redraw = 0.0

    def feed(self, text: str) -> None:
        self._rest += harmless(text)
        if (started := self._clock()) >= self._next_redraw:
            self._redraw()
            now = self._clock()
            self._next_redraw = now + max(_REDRAW_SECONDS, _REST * (now - started))

    def finish(self) -> None:
        """Show what is still held back; the writer is used up."""
        self._redraw()
        self._live.commit()

    def _redraw(self) -> None:
        finished, self._rest = split_blocks(self._rest)
        for block in finished:
            self._show(block)
            self._live.commit()
            self._first = False
        self._show(self._rest)

    def _show(self, block: str) -> None:
        if self._console.width != self._width:
            # The terminal has rewrapped what was shown, so it cannot be written over.
            self._width = self._console.width
            self._live.commit()
        self._live.update(self._render(block), self._console.height)

    def _render(self, block: str) -> list[str]:
        # One column stays free: a full line would leave the cursor in an undefined place.
        with self._console.capture() as capture:
            self._console.print(Markdown(block, hyperlinks=False), width=self._width - 1)
        lines = capture.get().strip("\n").split("\n")
        if lines == [""]:
            return []
        return lines if self._first else ["", *lines]

    def _emit(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
