"""What the model wrote becomes reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.parsers.hermes import HermesParser
from astrai_cli.serving.parsers.muse import MuseParser
from astrai_cli.serving.parsers.output import (
    Delta,
    End,
    Ending,
    InvalidToolOutputError,
    OutputParser,
    ParsedOutput,
    PlainParser,
    ToolCall,
)
from astrai_cli.serving.tool_schemas import ToolSet

__all__ = [
    "PARSERS",
    "Delta",
    "End",
    "Ending",
    "InvalidToolOutputError",
    "OutputParser",
    "ParsedOutput",
    "ToolCall",
    "make_parser",
    "parse_output",
]

PARSERS: dict[str, Callable[[ToolSet], OutputParser]] = {
    "none": lambda tools: MuseParser(ToolSet()),
    "atem": MuseParser,
    "hermes": HermesParser,
    "plain": lambda tools: PlainParser(),
}
"""By name. none: Muse Glimmer's framing, without calls. plain: neither framing nor calls."""


def make_parser(name: str, tools: ToolSet) -> OutputParser:
    """A parser for one answer. An empty tool set stands for tools that are disabled.

    Raises InvalidInputError for an unknown name.
    """
    if name not in PARSERS:
        raise InvalidInputError(f"there is no parser {name!r}, only {', '.join(PARSERS)}")
    return PARSERS[name](tools)


def parse_output(
    parser: str, text: str, tools: Sequence[Mapping[str, Any]], end: End = "eos"
) -> ParsedOutput:
    """Parse a whole answer of a request with these tools, in OpenAI's form.

    text: what the model generated, controls written out.
    Raises InvalidToolOutputError for calls that cannot be delivered, and what ToolSet
    raises for the tools.
    """
    output = make_parser(parser, ToolSet(tools))
    deltas = output.feed(text)
    ending = output.finish(end)
    channels = {"reasoning": "", "content": ""}
    for delta in deltas + ending.deltas:
        channels[delta.channel] += delta.text
    return ParsedOutput(
        channels["reasoning"] or None,
        channels["content"],
        ending.tool_calls,
        ending.finish_reason,
    )
