"""ATEM markup: blocks of calls whose parameters stand as they are, with nothing escaped.

    <atem:function_calls>
    <atem:invoke name="NAME">
    <atem:parameter name="KEY">VALUE</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

A value may hold anything, controls and markup too: its closing tag counts only
where the structure goes on behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from astrai_cli.serving.parsers.calls import TextCall
from astrai_cli.serving.parsers.markdown import any_of, is_prefix, prefixes
from astrai_cli.serving.parsers.markup import Status

BLOCK = "<atem:function_calls>"
INVOKE = '<atem:invoke name="'
PARAMETER = '<atem:parameter name="'
END_BLOCK = "</atem:function_calls>"
END_INVOKE = "</atem:invoke>"
END_PARAMETER = "</atem:parameter>"
MAX_NAME_CHARS = 1024

_SPACES = re.compile(r"\s*")
_UNFINISHED_VALUE_END = re.compile(rf"(?:{prefixes(END_PARAMETER)})\Z")


class AtemBlock:
    """Reads one block. A malformed one ends by its closing tag, or with its message."""

    def __init__(self, opener: str, terminators: Sequence[str]) -> None:
        # An invocation without its block around it has lost its opener.
        self.status: Status = "open" if opener == BLOCK else "malformed"
        self.calls: list[TextCall] = []
        self._read: Callable[[str, int], int] = self._invoke_or_end
        self._name = ""
        self._value: list[str] = []
        self._pending: list[str] = []
        ends = (END_BLOCK, *terminators)
        self._end = re.compile(any_of(ends))
        self._unfinished_end = re.compile(rf"(?:{'|'.join(map(prefixes, ends))})\Z")

    def feed(self, buffer: str, position: int) -> int:
        """Read on. Returns where it stopped: behind the block, where it broke, or for more text."""
        if self.status == "malformed":
            return self._skip(buffer, position)
        while self.status == "open":
            start, read = position, self._read
            position = read(buffer, position)
            if position == start and self._read == read:
                break
        return position

    def _skip(self, buffer: str, position: int) -> int:
        """Pass over the rest of a malformed block, to where it ends."""
        end = self._end.search(buffer, position)
        if end is not None:
            self.status = "failed"
            return end.end()
        tail = self._unfinished_end.search(buffer, max(position, len(buffer) - len(END_BLOCK)))
        return tail.start() if tail else len(buffer)

    def _invoke_or_end(self, buffer: str, position: int) -> int:
        position, tag = self._tag(buffer, position, (INVOKE, END_BLOCK))
        if tag == END_BLOCK:
            self.status = "closed" if self.calls else "failed"
        elif tag is not None:
            self._read = self._invoke_name
        return position

    def _parameter_or_end(self, buffer: str, position: int) -> int:
        position, tag = self._tag(buffer, position, (PARAMETER, END_INVOKE))
        if tag is not None:
            self._read = self._key if tag == PARAMETER else self._invoke_or_end
        return position

    def _invoke_name(self, buffer: str, position: int) -> int:
        position, name = self._quoted(buffer, position)
        if name is not None:
            self.calls.append(TextCall(name, []))
            self._read = self._parameter_or_end
        return position

    def _key(self, buffer: str, position: int) -> int:
        position, name = self._quoted(buffer, position)
        if name is not None:
            self._name = name
            self._read = self._in_value
        return position

    def _in_value(self, buffer: str, position: int) -> int:
        end = buffer.find(END_PARAMETER, position)
        if end >= 0:
            self._value.append(buffer[position:end])
            self._pending = [END_PARAMETER]
            self._read = self._behind_value
            return end + len(END_PARAMETER)
        reach = max(position, len(buffer) - len(END_PARAMETER))
        tail = _UNFINISHED_VALUE_END.search(buffer, reach)
        stop = tail.start() if tail else len(buffer)
        self._value.append(buffer[position:stop])
        return stop

    def _behind_value(self, buffer: str, position: int) -> int:
        """Behind a value's closing tag, which counts only if the structure goes on."""
        stop = _skip_spaces(buffer, position)
        self._pending.append(buffer[position:stop])
        if buffer.startswith((PARAMETER, END_INVOKE), stop):
            self.calls[-1].parameters.append((self._name, "".join(self._value)))
            self._value = []
            self._read = self._parameter_or_end
        elif not is_prefix(buffer, stop, (PARAMETER, END_INVOKE)):
            self._value += self._pending
            self._read = self._in_value
        return stop

    def _tag(self, buffer: str, position: int, tags: tuple[str, ...]) -> tuple[int, str | None]:
        """One of the tags that may stand here, and where it ends."""
        position = _skip_spaces(buffer, position)
        for tag in tags:
            if buffer.startswith(tag, position):
                return position + len(tag), tag
        if not is_prefix(buffer, position, tags):
            self.status = "malformed"
        return position, None

    def _quoted(self, buffer: str, position: int) -> tuple[int, str | None]:
        """The name up to its quote and the tag's end, and where that is."""
        end = buffer.find('"', position, position + MAX_NAME_CHARS + 1)
        if end < 0:
            if len(buffer) - position > MAX_NAME_CHARS:
                self.status = "malformed"
            return position, None
        if end + 1 == len(buffer):
            return position, None
        name = buffer[position:end]
        if not name or "\n" in name or buffer[end + 1] != ">":
            self.status = "malformed"
            return position, None
        return end + 2, name


def _skip_spaces(buffer: str, position: int) -> int:
    match = _SPACES.match(buffer, position)
    return match.end() if match else position
