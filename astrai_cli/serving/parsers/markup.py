"""What all parsers of marked-up text share: text, and calls in blocks that start a line."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol

from astrai_cli.serving.parsers.calls import WrittenCall, accepted_calls
from astrai_cli.serving.parsers.markdown import Body, Grammar, is_prefix, prefixes
from astrai_cli.serving.parsers.output import (
    Channel,
    Delta,
    End,
    Ending,
    InvalidToolOutputError,
    OutputParser,
    finish_reason,
)
from astrai_cli.serving.tool_schemas import ToolSet

_NOT_SPACE = re.compile(r"\S")
_CODE_INDENT = 4
# An unfinished opener at a cut is taken for one from this length on.
_MIN_OPENER = 6


Status = Literal["open", "closed", "malformed", "failed"]


class CallBlock(Protocol):
    """Reads the calls of one block, from behind its opening tag.

    status: open while there is more to come; closed behind the closing tag;
    malformed where the structure broke; failed where a malformed block has ended.
    feed: read on, from a position of the buffer to the one returned; of a malformed
    block, pass over the rest.
    """

    @property
    def status(self) -> Status: ...
    @property
    def calls(self) -> Sequence[WrittenCall]: ...
    def feed(self, buffer: str, position: int) -> int: ...


class MarkupParser(OutputParser):
    """Runs states over a buffer of text that is not decided yet.

    A state consumes what it can, by moving `_position`, and says whether to go on;
    what it leaves is held back and is short, whatever the text.

    end_tags: how a model spells that its turn is over. At the very end of an
    answer that ended by itself, one is not part of it, wherever it stands.
    terminators: what ends a text. stray_tags: what must not follow a block.
    """

    end_tags: ClassVar[tuple[str, ...]]
    terminators: ClassVar[tuple[str, ...]] = ()
    stray_tags: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._buffer = ""
        self._position = 0
        self._state: Callable[[], bool] = self._start
        self._parts: list[tuple[Channel, list[str]]] = []
        self._body = Body(Grammar())
        self._lead: list[str] = []
        self._behind_block = False
        self._block: CallBlock | None = None
        self._calls: list[WrittenCall] = []
        self._error: str | None = None
        self._end = ""
        ends = "|".join((*map(re.escape, self.end_tags), *map(prefixes, self.end_tags)))
        self._unfinished_end = re.compile(rf"(?:{ends})\Z")

    def feed(self, piece: str) -> list[Delta]:
        text = self._end + piece
        reach = max(map(len, self.end_tags))
        end = self._unfinished_end.search(text, max(0, len(text) - reach))
        stop = end.start() if end else len(text)
        self._end = text[stop:]
        self._run(text[:stop])
        return self._take()

    def finish(self, end: End) -> Ending:
        if end != "eos" or self._end not in self.end_tags:
            self._run(self._end)
        was_cut = self._release(is_cut=end != "eos")
        in_call = bool(self._tools) and self._block is not None
        if in_call and end == "eos":
            self._error = self._error or "the model ended inside a call"
        if self._error is not None:
            raise InvalidToolOutputError(self._error)
        calls = () if was_cut or in_call else accepted_calls(self._calls, self._tools)
        return Ending(self._take(), calls, "tool_calls" if calls else finish_reason(end))

    @property
    def is_reasoning(self) -> bool:
        return self._channel == "reasoning" and self._state != self._start

    @property
    def failed(self) -> bool:
        return self._error is not None

    def _run(self, text: str) -> None:
        # One character of what is done stays, for patterns that look behind.
        done = max(0, self._position - 1)
        self._buffer = self._buffer[done:] + text
        self._position -= done
        while self._state():
            pass

    def _take(self) -> list[Delta]:
        deltas = [Delta(channel, "".join(parts)) for channel, parts in self._parts]
        self._parts = []
        return deltas

    def _emit(self, text: str) -> None:
        if not text:
            return
        if not self._parts or self._parts[-1][0] != self._channel:
            self._parts.append((self._channel, []))
        self._parts[-1][1].append(text)

    @abstractmethod
    def _start(self) -> bool:
        """The first state."""

    def _special(self, match: re.Match[str]) -> bool:
        """Act, as a state does, on what is special in a text, other than an opener."""
        self._emit(match[0])
        self._position = match.end()
        return True

    @property
    @abstractmethod
    def _channel(self) -> Channel:
        """Where text goes."""

    @property
    @abstractmethod
    def _grammar(self) -> Grammar:
        """What is special in the text."""

    @property
    @abstractmethod
    def _openers(self) -> tuple[str, ...]:
        """The tags that open a block in the text."""

    @abstractmethod
    def _new_block(self, opener: str) -> CallBlock:
        """What reads a block."""

    @property
    def _drops_lead(self) -> bool:
        """Whether white space is dropped that only the end of the text follows."""
        return self._behind_block

    @property
    def _expects_call(self) -> bool:
        """Whether what stands here can only be a call."""
        return False

    def _certain(self, rest: str) -> str:
        """What of the held back text is text, now that nothing follows."""
        return rest

    def _lead_in(self) -> bool:
        """At the start of a text: white space before a call is not part of the answer."""
        found = _NOT_SPACE.search(self._buffer, self._position)
        stop = found.start() if found else len(self._buffer)
        self._lead.append(self._buffer[self._position : stop])
        self._position = stop
        if found is None:
            return False
        lead = "".join(self._lead)
        indent = lead[lead.rfind("\n") + 1 :]
        at_line_start = len(indent) < _CODE_INDENT and not indent.strip(" ")
        openers = self._openers if at_line_start or self._drops_lead else ()
        strays = self.stray_tags if self._behind_block else ()
        ends = self.terminators if self._drops_lead else ()
        for opener in openers:
            if self._buffer.startswith(opener, stop):
                return self._open(opener, stop + len(opener))
        if self._buffer.startswith(strays, stop):
            return self._fail("the model's calls are malformed")
        if self._buffer.startswith(ends, stop):
            lead = ""
        elif is_prefix(self._buffer, stop, (*openers, *strays, *ends)):
            return False
        self._begin_text(lead=lead, at_line_start=at_line_start)
        return True

    def _begin_text(self, *, lead: str, at_line_start: bool) -> None:
        self._emit(lead)
        self._lead = []
        self._body = Body(self._grammar, at_line_start=at_line_start)
        self._state = self._text

    def _text(self) -> bool:
        stop, special = self._body.advance(self._buffer, self._position)
        self._emit(self._buffer[self._position : stop])
        self._position = stop
        if special is None:
            return False
        if special.lastgroup == "tag":
            return self._open(special["tag"], special.end())
        return self._special(special)

    def _open(self, opener: str, end: int) -> bool:
        self._lead = []
        self._position = end
        self._block = self._new_block(opener)
        self._state = self._in_block
        if not self._tools:
            self._emit(opener)
            self._state = self._in_literal_block
        return True

    def _in_block(self) -> bool:
        block = self._block
        assert block is not None
        before = block.status
        self._position = block.feed(self._buffer, self._position)
        match block.status:
            case "closed":
                self._calls += block.calls
                self._block = None
                self._behind_block = True
                self._state = self._lead_in
                return True
            case "failed":
                return self._fail("the model's calls are malformed")
            case status:
                return status != before

    def _in_literal_block(self) -> bool:
        """Calls of disabled tools are text, but their values keep what is special elsewhere."""
        block = self._block
        assert block is not None
        stop = block.feed(self._buffer, self._position)
        self._emit(self._buffer[self._position : stop])
        self._position = stop
        if block.status == "open":
            return False
        self._block = None
        self._begin_text(lead="", at_line_start=False)
        return True

    def _fail(self, error: str) -> bool:
        self._error = error
        self._state = self._drop
        return True

    def _drop(self) -> bool:
        self._position = len(self._buffer)
        return False

    def _release(self, *, is_cut: bool) -> bool:
        """Emit what was held back, now that nothing follows; whether a call was cut off in it."""
        rest = self._buffer[self._position :]
        opener = rest.lstrip("\n ")
        if self._state in {self._in_block, self._drop}:
            return False
        may_open = self._state == self._lead_in or not self._body.in_fence
        is_opener = is_prefix(opener, 0, self._openers)
        if self._state == self._lead_in and self._drops_lead:
            was_cut = is_opener if opener else self._expects_call
        else:
            was_cut = len(opener) >= _MIN_OPENER and is_opener and may_open
        if is_cut and was_cut and self._tools:
            return True
        if self._state == self._lead_in and not self._drops_lead:
            self._emit("".join(self._lead))
        self._emit(self._certain(rest))
        return False
