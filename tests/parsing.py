"""Running output parsers on text in pieces, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from astrai_cli.serving.parsers import Delta, End, InvalidToolOutputError, make_parser
from astrai_cli.serving.tool_schemas import ToolSet


@dataclass(frozen=True)
class Answer:
    """What a client has received of an answer; error: the code of a failed one."""

    reasoning: str | None = None
    content: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    finish_reason: str | None = None
    error: str | None = None


def tool(name: str, properties: dict[str, Any] | None = None, **schema: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    parameters = {"type": "object", "properties": properties or {}, **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def receive(
    pieces: Iterable[str],
    tools: Sequence[dict[str, Any]] = (),
    *,
    parser: str = "atem",
    end: End = "eos",
) -> Answer:
    """The answer that a text makes, fed in these pieces."""
    output = make_parser(parser, ToolSet(tools))
    received = {"reasoning": "", "content": ""}

    def deliver(deltas: list[Delta]) -> None:
        for delta in deltas:
            assert delta.text
            received[delta.channel] += delta.text

    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    finish_reason, error = None, None
    for piece in pieces:
        deliver(output.feed(piece))
    try:
        ending = output.finish(end)
    except InvalidToolOutputError as failure:
        error = failure.code
    else:
        assert not output.failed
        deliver(ending.deltas)
        calls = tuple((call.name, call.arguments) for call in ending.tool_calls)
        finish_reason = ending.finish_reason
    return Answer(received["reasoning"] or None, received["content"], calls, finish_reason, error)
