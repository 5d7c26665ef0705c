"""What keeps a terminal safe and steady while a model writes to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Control characters become their visible pictures (ESC is shown as ␛), so that no
# sequence in a model's text can move the cursor, set a title or answer a query.
_PICTURES: dict[int, int | None] = {code: 0x2400 + code for code in range(0x20)}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES[ord("\r")] = None
del _PICTURES[ord("\n")], _PICTURES[ord("\t")]


def harmless(text: str) -> str:
    """`text` without control characters other than newline and tab."""
    return text.translate(_PICTURES)


@contextmanager
def echo_off() -> Iterator[None]:
    """Keep keys pressed meanwhile off the screen; they stay for the next prompt."""
    try:
        import termios

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, termios.error):
        yield
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class LiveLines:
    """Rewritable lines at the bottom of a terminal.

    Only lines that changed are written again, in one write, so nothing flickers.
    Lines that no longer fit on the screen scroll up and stay as they are.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._shown: list[str] = []
        self._scrolled = 0

    def update(self, lines: list[str], height: int) -> None:
        """Show `lines`, each narrower than the screen, which is `height` rows high."""
        visible = lines[self._scrolled :]
        kept = 0
        while kept < min(len(visible), len(self._shown)) and visible[kept] == self._shown[kept]:
            kept += 1
        up = len(self._shown) - kept
        if up or kept < len(visible):
            move = f"\x1b[{up}A\r" if up else "\r"
            self._write(move + "\x1b[J" + "".join(line + "\n" for line in visible[kept:]))
        excess = max(0, len(visible) - (height - 1))
        self._scrolled += excess
        self._shown = visible[excess:]

    def commit(self) -> None:
        """Leave the lines as they are; the next update starts below them."""
        self._shown = []
        self._scrolled = 0
