"""How fast model output is parsed: plain and hostile text, in large pieces and token by token.

Every line is one text of a given size, fed to a fresh parser in pieces of 64 KiB
and of 4 characters; seconds are the processor's. The last column is the time for
the whole text by that for its first half: 2.0 where time grows linearly.

    python benchmarks/parser_speed.py [--size 1048576]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from astrai_cli.serving.parsers import InvalidToolOutputError, make_parser
from astrai_cli.serving.tool_schemas import ToolSet

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {"type": "object", "properties": {"content": {"type": "string"}}},
        },
    }
]
USER = " to=user<|message|>"
SELF = " to=self<|message|>"
TOOL = " to=write<|message|>"
VALUE = TOOL + '<atem:function_calls>\n<atem:invoke name="write">\n<atem:parameter name="content">'
PROSE = "The quick brown fox jumps over the lazy dog, and then it does so once more.\n"

# The parser, how the text begins, and what repeats.
TEXTS: dict[str, tuple[str, str, str]] = {
    "prose": ("atem", USER, PROSE),
    "prose, without framing": ("atem", "", PROSE),
    "prose, to itself": ("atem", SELF, PROSE),
    "a long value": ("atem", VALUE, PROSE),
    "prose, hermes": ("hermes", "", PROSE),
    "openers in a row": ("atem", USER, '<atem:invoke name="'),
    "openers on lines": ("atem", TOOL + "x", '\n<atem:invoke name="'),
    "an endless name": ("atem", TOOL + '<atem:function_calls><atem:invoke name="', "name"),
    "parameters, none closed": ("atem", VALUE, '<atem:parameter name="'),
    "closers that close nothing": ("atem", VALUE, "</atem:parameter> "),
    "fences": ("atem", USER, "```\n"),
    "fences of two kinds": ("atem", USER, "```\n~~~\n"),
    "a fence's endless line": ("atem", USER + "```", "info "),
    "runs shorter than the fence": ("atem", USER + "````\n", "```\n"),
    "spaces behind a fence": ("atem", USER + "```\n```", "    "),
    "backticks": ("atem", USER, "`"),
    "line breaks": ("atem", USER + "x", "\n"),
    "white space": ("atem", TOOL, " \n"),
    "unfinished controls": ("atem", USER, "<|eo"),
    "terminators": ("atem", USER, "<|eom|>"),
    "headers": ("atem", USER, "<|eom|><|start|>assistant to=self<|message|>"),
    "headers that are none": ("atem", "", "to=a "),
    "one header that is none": ("atem", "", "to="),
    "controls, to itself": ("atem", SELF, "<|start|>"),
    "JSON strings": ("hermes", '<tool_call>{"a": "', '\\""'),
    "thoughts": ("hermes", "<think>", "</think "),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, default=2**20, help="characters of each text")
    size = options.parse_args().size
    print(f"{'text':28} {'64 KiB pieces':>14} {'4-character pieces':>24} {'grows':>6}")
    for name, (parser, start, repeated) in TEXTS.items():
        text = (start + repeated * (size // len(repeated) + 1))[:size]
        fast = seconds(parser, text, 2**16)
        tokens = seconds(parser, text, 4)
        half = seconds(parser, text[: size // 2], 4)
        print(
            f"{name:28} {size / fast / 1e6:9.1f} MB/s"
            f" {size / tokens / 1e6:6.2f} MB/s, {tokens / (size / 4) * 1e6:5.2f} us"
            f" {tokens / half:6.1f}"
        )


def seconds(parser: str, text: str, piece: int) -> float:
    """The best of three runs over a text in pieces."""
    tools = ToolSet(TOOLS)
    best = float("inf")
    for _ in range(3):
        output = make_parser(parser, tools)
        started = time.process_time()
        for position in range(0, len(text), piece):
            output.feed(text[position : position + piece])
        with contextlib.suppress(InvalidToolOutputError):
            output.finish("length")
        best = min(best, time.process_time() - started)
    return best


if __name__ == "__main__":
    main()
