"""What every output parser is: pieces of the model's text in, parts of an answer out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from astrai_cli.errors import AstraiError

End = Literal["eos", "length", "stop"]
"""Why generation ended: by itself, by the token limit, or at a stop string of the request."""

FinishReason = Literal["stop", "length", "tool_calls"]
Channel = Literal["reasoning", "content"]


class InvalidToolOutputError(AstraiError):
    """The model's calls are malformed, of no declared tool, or against their schemas."""

    status = 502
    code = "invalid_tool_output"


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of one channel of the answer."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that its tool's schema accepts; the name is the declared one."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer: text that was held back, and the calls, which come all at once."""

    deltas: list[Delta]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole answer. reasoning: None where there was none."""

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason


class OutputParser(ABC):
    """Parses one answer. The result does not depend on how the text was cut into pieces."""

    @abstractmethod
    def feed(self, piece: str) -> list[Delta]:
        """The deltas that are certain now."""

    @abstractmethod
    def finish(self, end: End) -> Ending:
        """The rest of the answer, once.

        Raises InvalidToolOutputError where a call set is complete and wrong; what
        was delivered before stands, but there are no calls.
        """

    @property
    def is_reasoning(self) -> bool:
        """Whether text that came now would belong to the reasoning, or end it."""
        return False

    @property
    def failed(self) -> bool:
        """Whether `finish` is bound to raise, so that generating more is of no use."""
        return False


class PlainParser(OutputParser):
    """For models whose text is the answer."""

    def feed(self, piece: str) -> list[Delta]:
        return [Delta("content", piece)] if piece else []

    def finish(self, end: End) -> Ending:
        return Ending([], (), finish_reason(end))


def finish_reason(end: End) -> FinishReason:
    """The finish reason of an answer without calls."""
    return "length" if end == "length" else "stop"
