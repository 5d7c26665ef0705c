"""Answers of Qwen-like models: `<think>…</think>`, text, and calls as JSON in `<tool_call>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from astrai_cli.serving.parsers.calls import JsonCall
from astrai_cli.serving.parsers.markdown import Grammar, is_prefix, prefixes
from astrai_cli.serving.parsers.markup import CallBlock, MarkupParser, Status
from astrai_cli.serving.parsers.output import Channel
from astrai_cli.serving.tool_schemas import ToolSet
from astrai_cli.serving.tool_schemas.json_text import parse_json

THINK = "<think>"
CALL = "<tool_call>"
END_CALL = "</tool_call>"

_NOT_SPACE = re.compile(r"\S")
# White space around the thoughts is layout, as far as it is held back.
_END_THINK = re.compile(r"\s{0,16}</think>")
_UNFINISHED_END_THINK = re.compile(rf"\s{{0,16}}(?:{prefixes('</think>')})?\Z")
_REACH = 32
# To a string that is not over yet, or to what may be the closing tag.
_OUTSIDE_STRING = re.compile(r'(?:[^"<]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|<(?!/|\Z))*+', re.DOTALL)
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)

_WITH_CALLS = Grammar(line_tags=(CALL,))
_TEXT_ONLY = Grammar()


class HermesParser(MarkupParser):
    """Parses such answers. Without tools, calls are text."""

    end_tags = ("<|im_end|>", "<|endoftext|>")

    def __init__(self, tools: ToolSet, *, thinking: bool = False) -> None:
        """thinking: whether the prompt ends inside the thoughts, behind `<think>`."""
        super().__init__(tools)
        self._is_thinking = thinking
        self._behind_spaces: Callable[[], bool] = self._thoughts
        if thinking:
            self._state = self._spaces

    @property
    def _channel(self) -> Channel:
        return "reasoning" if self._is_thinking else "content"

    @property
    def _grammar(self) -> Grammar:
        return _WITH_CALLS if self._tools else _TEXT_ONLY

    @property
    def _openers(self) -> tuple[str, ...]:
        return (CALL,) if self._tools else ()

    def _new_block(self, opener: str) -> CallBlock:
        return JsonBlock()

    def _start(self) -> bool:
        found = _NOT_SPACE.search(self._buffer, self._position)
        stop = found.start() if found else len(self._buffer)
        self._lead.append(self._buffer[self._position : stop])
        self._position = stop
        if self._buffer.startswith(THINK, stop):
            self._position += len(THINK)
            self._lead = []
            self._is_thinking = True
            self._state = self._spaces
        elif is_prefix(self._buffer, stop, (THINK,)):
            return False
        else:
            self._state = self._lead_in
        return True

    def _spaces(self) -> bool:
        """Between a tag of the thoughts and the text behind it."""
        found = _NOT_SPACE.search(self._buffer, self._position)
        self._position = found.start() if found else len(self._buffer)
        if found is None:
            return False
        self._state = self._behind_spaces
        return True

    def _thoughts(self) -> bool:
        end = _END_THINK.search(self._buffer, self._position)
        if end is None:
            reach = max(self._position, len(self._buffer) - _REACH)
            held = _UNFINISHED_END_THINK.search(self._buffer, reach)
            stop = held.start() if held else len(self._buffer)
            self._emit(self._buffer[self._position : stop])
            self._position = stop
            return False
        self._emit(self._buffer[self._position : end.start()])
        self._position = end.end()
        self._is_thinking = False
        self._behind_spaces = self._lead_in
        self._state = self._spaces
        return True

    def _certain(self, rest: str) -> str:
        return rest.partition("</")[0].rstrip() if self._is_thinking else rest

    def _release(self, *, is_cut: bool) -> bool:
        if self._state == self._start:
            self._state = self._lead_in
        return super()._release(is_cut=is_cut)


class JsonBlock:
    """Reads one call, `{"name": …, "arguments": {…}}`, from behind its opening tag.

    The closing tag counts only outside of JSON's strings.
    """

    def __init__(self) -> None:
        self.status: Status = "open"
        self.calls: Sequence[JsonCall] = ()
        self._text: list[str] = []
        self._in_string = False

    def feed(self, buffer: str, position: int) -> int:
        """Read on. Returns where it stopped: behind the block, or for more text."""
        start = position
        while True:
            stop = (self._string if self._in_string else self._outside)(buffer, position)
            if stop == position:
                break
            position = stop
        self._text.append(buffer[start:position])
        if not self._in_string and buffer.startswith(END_CALL, position):
            self._close()
            position += len(END_CALL)
        return position

    def _outside(self, buffer: str, position: int) -> int:
        found = _OUTSIDE_STRING.match(buffer, position)
        stop = found.end() if found else position
        if buffer.startswith('"', stop):
            self._in_string = True
            return stop + 1
        if is_prefix(buffer, stop, (END_CALL,)) or buffer.startswith(END_CALL, stop):
            return stop
        return min(stop + 1, len(buffer))

    def _string(self, buffer: str, position: int) -> int:
        """To behind the closing quote; a backslash that ends the buffer is held back."""
        body = _IN_STRING.match(buffer, position)
        stop = body.end() if body else position
        if not buffer.startswith('"', stop):
            return stop
        self._in_string = False
        return stop + 1

    def _close(self) -> None:
        call = parse_json("".join(self._text))
        self.status = "failed"
        if isinstance(call, dict) and call.keys() == {"name", "arguments"}:
            name, arguments = call["name"], call["arguments"]
            if isinstance(name, str) and isinstance(arguments, dict):
                self.status = "closed"
                self.calls = (JsonCall(name, arguments),)
