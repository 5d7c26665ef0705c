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

_Factory = Callable[[ToolSet, bool], OutputParser]

PARSERS: dict[str, _Factory] = {
    "none": lambda tools, thinking: MuseParser(ToolSet()),
    "atem": lambda tools, thinking: MuseParser(tools),
    "hermes": lambda tools, thinking: HermesParser(tools, thinking=thinking),
    "plain": lambda tools, thinking: PlainParser(),
}
"""By name. none: Muse Glimmer's framing, without calls. plain: neither framing nor calls."""


def make_parser(name: str, tools: ToolSet, *, thinking: bool = False) -> OutputParser:
    """A parser for one answer. An empty tool set stands for tools that are disabled.

    thinking: whether the prompt ends inside the model's thoughts. Raises
    InvalidInputError for an unknown name.
    """
    if name not in PARSERS:
        raise InvalidInputError(f"there is no parser {name!r}, only {', '.join(PARSERS)}")
    return PARSERS[name](tools, thinking)


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
