"""The framing of Muse Glimmer: messages to oneself, to the user and to tools.

The prompt ends with `<|start|>assistant`, so the model's text begins with
` to=RECIPIENT<|message|>`. Once a message has a recipient, another header counts
only behind `<|eom|>` or `<|eot|>` and white space; anywhere else it is text.
"""

from __future__ import annotations

import re

import regex

from astrai_cli.serving.parsers.atem import BLOCK, INVOKE, AtemBlock
from astrai_cli.serving.parsers.markdown import Grammar, any_of, prefixes
from astrai_cli.serving.parsers.markup import CallBlock, MarkupParser
from astrai_cli.serving.parsers.output import Channel
from astrai_cli.serving.tool_schemas import ToolSet

GOES_ON = "<|eom|>"
TERMINATORS = (GOES_ON, "<|eot|>")
HEADER = ("<|start|>", "<|message|>")
"""What begins and ends a message's header."""
CONTROLS = (
    *TERMINATORS,
    *HEADER,
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|image_start|>",
    "<|image_end|>",
    "<|patch|>",
    "<|video|>",
    "<|mask|>",
    "<|finetune_right_pad|>",
)
_CONTROL = re.compile(any_of(CONTROLS))
_HEADER = regex.compile(
    r"\s{0,64}(?:<\|start\|>\s{0,8}assistant\s{0,64})?"
    r"(?:to=(?P<to>[^\s<]{1,256})\s{0,64})?<\|message\|>"
)
# Where a header may begin: so much of it is there that the rest is worth looking at.
_MAYBE_HEADER = r"<\|start\|>(?=\s{0,8}(?:a|\Z))|(?<!\S)to=(?=[^\s<]{1,256}\s{0,64}(?:<|\Z)|\Z)"
_HELD = tuple(map(prefixes, CONTROLS))
_TERMINATOR = f"(?:{any_of(TERMINATORS)})+"

_REASONING = Grammar(inline=_TERMINATOR, terminators=TERMINATORS, held=_HELD)
_TO_USER = Grammar(line_tags=(BLOCK,), inline=_TERMINATOR, terminators=TERMINATORS, held=_HELD)
_TO_TOOL = Grammar(
    line_tags=(BLOCK, INVOKE), inline=_TERMINATOR, terminators=TERMINATORS, held=_HELD
)
_UNADDRESSED = Grammar(
    line_tags=(BLOCK,),
    inline=rf"{_TERMINATOR}|{_MAYBE_HEADER}",
    terminators=TERMINATORS,
    held=(*_HELD, r"(?<!\S)to?"),
)


class MuseParser(MarkupParser):
    """Parses answers of Muse Glimmer, with ATEM calls. Without tools, calls are text."""

    end_tags = ("<|eot|>", "<|end_of_text|>")
    terminators = TERMINATORS
    stray_tags = ("</atem:",)

    def __init__(self, tools: ToolSet) -> None:
        super().__init__(tools)
        self._recipient: str | None = None
        self._is_first = True
        self._goes_on = False
        # The channels that have text, and those whose next text is another message's.
        self._begun: set[Channel] = set()
        self._separated: set[Channel] = set()

    @property
    def _channel(self) -> Channel:
        return "reasoning" if self._recipient == "self" else "content"

    @property
    def _is_to_tool(self) -> bool:
        return self._recipient not in {None, "self", "user"}

    @property
    def _drops_lead(self) -> bool:
        return self._behind_block or self._is_to_tool

    @property
    def _expects_call(self) -> bool:
        return self._is_to_tool and not self._behind_block

    @property
    def _grammar(self) -> Grammar:
        match self._recipient:
            case None:
                return _UNADDRESSED
            case "self":
                return _REASONING
            case "user":
                return _TO_USER
            case _:
                return _TO_TOOL if self._tools else _TO_USER

    @property
    def _openers(self) -> tuple[str, ...]:
        return (BLOCK, INVOKE) if self._is_to_tool and self._tools else (BLOCK,)

    def _new_block(self, opener: str) -> CallBlock:
        return AtemBlock(opener, TERMINATORS)

    def _emit(self, text: str) -> None:
        if self._channel == "reasoning":
            text = _CONTROL.sub("", text)
        if not text:
            return
        if self._channel in self._separated:
            self._separated.remove(self._channel)
            super()._emit("\n")
        self._begun.add(self._channel)
        super()._emit(text)

    def _start(self) -> bool:
        """Where a header may stand: at the very start, and behind a terminator."""
        header = _HEADER.match(self._buffer, self._position, partial=True)
        if header is None:
            self._begin_body()
            return True
        if header.partial:
            return False
        return self._enter(header)

    def _enter(self, header: regex.Match[str]) -> bool:
        self._position = header.end()
        self._recipient = header["to"] or "user"
        self._separated |= self._begun & {self._channel}
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        self._is_first = False
        self._behind_block = False
        if self._channel == "reasoning":
            self._begin_text(lead="", at_line_start=True)
        else:
            self._state = self._lead_in

    def _special(self, match: re.Match[str]) -> bool:
        if match["inline"].startswith(TERMINATORS):
            self._position = match.end()
            self._goes_on = match["inline"].endswith(GOES_ON)
            self._state = self._start
            return True
        # Before there is any recipient, a whole header counts wherever it stands.
        header = _HEADER.match(self._buffer, match.start("inline"), partial=True)
        if header is None:
            return super()._special(match)
        return not header.partial and self._enter(header)

    def _certain(self, rest: str) -> str:
        """An unfinished control is no text, but for what a fence or a call of no tool shows."""
        literal = self._channel == "content" and (
            self._body.in_fence if self._state == self._text else self._block is not None
        )
        return rest if literal or "<|" not in rest else ""

    def _release(self, *, is_cut: bool) -> bool:
        held = self._buffer[self._position :]
        if is_cut and self._calls and self._state == self._start and self._goes_on:
            # More of the same turn was to come: whether further calls, nobody knows.
            return True
        if self._state == self._start and not self._is_first and held.isspace():
            return False
        return super()._release(is_cut=is_cut)
