"""Markdown shown while it grows, on a small emulated screen."""

from __future__ import annotations

import io
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from astrai_cli.chat.markdown import MarkdownWriter, split_blocks

SAMPLE = """# Title

A *first* paragraph
in two lines.

1. one

2. two
   - inner

| a | b |
|---|---|
| 1 | 2 |

```python
def f():

    return "# not a heading"
```
> quote

Last words"""

FRAGMENTS = st.sampled_from(
    [
        "# h",
        "- item",
        "1. one",
        "2. two",
        "```",
        "text",
        "---",
        "| a | b |",
        "|--|--|",
        "> q",
        "  more",
        "",
        "",
        "*x*",
        "<div>",
        "[a]: /b",
        "\u2028",
        "===",
        "    code",
    ]
)


class Screen:
    """A terminal that knows newline, return, cursor up and erase below."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\d*[A-Z]|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part.endswith("A") and part.startswith("\x1b"):
                self.row -= int(part[2:-1])
            elif part == "\x1b[J":
                self.lines[self.row :] = [""]
            elif part[0] not in "\x1b\r":
                self.lines[self.row] += part
        assert self.row >= 0

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip("\n")


class Clock:
    """Time that passes between pieces and not while drawing."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def console(width: int = 60, height: int = 12) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def show(pieces: list[str], height: int = 12) -> str:
    """What the screen and its scrolled-off lines hold after `pieces`."""
    target = console(height=height)
    clock = Clock()
    writer = MarkdownWriter(target, clock)
    for piece in pieces:
        clock.now += 1.0
        writer.feed(piece)
    writer.finish()
    assert isinstance(target.file, io.StringIO)
    screen = Screen()
    screen.write(target.file.getvalue())
    return screen.text()


@given(lines=st.lists(FRAGMENTS, max_size=12), end=st.sampled_from(["", "\n"]))
def test_blocks_add_up_to_the_text(lines: list[str], end: str) -> None:
    text = "\n".join(lines) + end
    blocks, rest = split_blocks(text)
    assert "".join(blocks) + rest == text


@given(lines=st.lists(FRAGMENTS, max_size=12), more=st.lists(FRAGMENTS, max_size=4))
def test_a_finished_block_stays_as_it_is(lines: list[str], more: list[str]) -> None:
    text = "\n".join(lines)
    blocks, _ = split_blocks(text)
    longer, _ = split_blocks(text + "\n" + "\n".join(more))
    assert longer[: len(blocks)] == blocks


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(SAMPLE)), max_size=12))
def test_any_cut_shows_the_same(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(SAMPLE)]
    pieces = [SAMPLE[a:b] for a, b in pairwise(bounds)]
    assert show(pieces, height=100) == show([SAMPLE], height=100)


def test_an_answer_longer_than_the_screen_is_shown_once_and_whole() -> None:
    lines = [f"word{n}" for n in range(60)]
    text = "```\n" + "\n".join(lines) + "\n```\n\nend"
    shown = show(list(text), height=10).split()
    assert shown == [*lines, "end"]


def test_control_sequences_are_shown_not_sent() -> None:
    shown = show(["evil \x1b", "[2J\x1b]0;title\x07 \x9b5A text\r\n"])
    assert shown == "evil ␛[2J␛]0;title␇ \ufffd5A text"


def test_only_changed_lines_are_written_again() -> None:
    target = console()
    clock = Clock()
    writer = MarkdownWriter(target, clock)
    assert isinstance(target.file, io.StringIO)
    writer.feed("- one\n- two\n- thr")
    before = target.file.tell()
    clock.now += 1.0
    writer.feed("ee")
    written = target.file.getvalue()[before:]
    assert "three" in written
    assert "one" not in written


def test_a_resized_terminal_is_not_written_over() -> None:
    target = console(width=60)
    clock = Clock()
    writer = MarkdownWriter(target, clock)
    writer.feed("hello")
    target.width = 20
    assert isinstance(target.file, io.StringIO)
    before = target.file.tell()
    clock.now += 1.0
    writer.feed(" world")
    assert re.search(r"\x1b\[\d+A", target.file.getvalue()[before:]) is None
    assert "hello world" in target.file.getvalue()[before:]
