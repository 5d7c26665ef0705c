"""Text that may hold Markdown code fences: what inside them is literal, what outside is not.

Fences are those of CommonMark 0.31, section 4.5: indented by at most three
spaces, opened by at least three backticks or tildes, closed by a run of the same
that is at least as long and followed by white space only. The info string of
backticks has no backticks. A fence that nothing closes reaches to the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_FENCE = "`{3,}|~{3,}"
_RUN = {"`": re.compile("`*"), "~": re.compile("~*")}
_SPACES = re.compile(r"[ \t\r]*")
# Runs that are too short to close a fence are passed over, up to this length.
_RUN_SEARCHED = 8
_CLOSER = {
    (char, length): re.compile(rf"\n {{0,3}}({char}{{{length},}})[ \t\r]*")
    for char in "`~"
    for length in range(3, _RUN_SEARCHED + 1)
}
_UNFINISHED_CLOSER = f"\n {{0,3}}(?:`{{0,{_RUN_SEARCHED}}}|~{{0,{_RUN_SEARCHED}}})"
_NEVER = r"(?!)"
# No tag is longer, with the line break and the spaces before it.
_REACH = 32


def prefixes(tag: str) -> str:
    """A pattern of all the beginnings of a tag, the longest first, but not the empty one."""
    pattern = ""
    for char in reversed(tag[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return pattern or _NEVER


def any_of(tags: Iterable[str]) -> str:
    """A pattern of any of the tags, as they stand."""
    return "|".join(map(re.escape, tags)) or _NEVER


def is_prefix(buffer: str, position: int, tags: Sequence[str]) -> bool:
    """Whether the rest of the buffer may be the beginning of one of the tags."""
    rest = buffer[position : position + max(map(len, tags), default=0)]
    return any(tag.startswith(rest) for tag in tags)


class Grammar:
    """What is special in a text outside fences.

    line_tags: special at the start of a line. inline: a pattern of what is special
    anywhere. terminators: tags that are also special at the end of a fence's line;
    inline must match them. held: patterns of a text's end that may still become
    something special, beside unfinished line tags.
    """

    def __init__(
        self,
        *,
        line_tags: Sequence[str] = (),
        inline: str = _NEVER,
        terminators: Sequence[str] = (),
        held: Sequence[str] = (),
    ) -> None:
        line_start = f" {{0,3}}(?:(?P<fence>{_FENCE})|(?P<tag>{any_of(line_tags)}))"
        unfinished_starts = ("`{0,2}", "~{0,2}", *map(prefixes, line_tags))
        unfinished = f" {{0,3}}(?:{'|'.join(unfinished_starts)})"
        ends = f"\n|{any_of(terminators)}"
        self.line_start = re.compile(line_start)
        self.unfinished_line_start = re.compile(rf"(?:{unfinished})\Z")
        self.special = re.compile(f"(?P<inline>{inline})|\n{line_start}")
        self.tail = re.compile(rf"(?:\n{unfinished}|{'|'.join(held) or _NEVER})\Z")
        self.fenced_tail = re.compile(rf"(?:{'|'.join((_UNFINISHED_CLOSER, *held))})\Z")
        self.held = re.compile(rf"(?:{'|'.join(held) or _NEVER})\Z")
        self.terminator = re.compile(any_of(terminators))
        self.info_end = {"`": re.compile(f"`|{ends}"), "~": re.compile(ends)}


class Body:
    """Walks through one text, piece by piece, and stops at what is special.

    It keeps the little that it needs to know of the text before, so that no text
    is looked at twice but the end that is held back.
    """

    def __init__(self, grammar: Grammar, *, at_line_start: bool = True) -> None:
        self._grammar = grammar
        self._at_line_start = at_line_start
        # On the lines of a fence and inside it: how to go on.
        self._fence: Callable[[str, int], tuple[int, bool]] | None = None
        # The open fence, and the run of its character that is being read.
        self._char = "`"
        self._length = 0
        self._run = 0
        self._in_run = False

    @property
    def in_fence(self) -> bool:
        """Whether what comes next is literal, whatever it is."""
        return self._fence is not None

    def advance(self, buffer: str, position: int) -> tuple[int, re.Match[str] | None]:
        """Walk on from a position of the buffer.

        Returns where it stopped and the special match there; without one, what
        follows must be held back until there is more of it. All before is literal.
        """
        while True:
            if self._fence is not None:
                position, goes_on = self._fence(buffer, position)
                if not goes_on:
                    return position, None
                continue
            if self._at_line_start:
                if self._grammar.unfinished_line_start.match(buffer, position):
                    return position, None
                self._at_line_start = False
                special = self._grammar.line_start.match(buffer, position)
                special = special or self._grammar.special.search(buffer, position)
            else:
                special = self._grammar.special.search(buffer, position)
            if special is None:
                return self._end(self._grammar.tail, buffer, position), None
            if special.lastgroup != "fence":
                return special.start(special.lastgroup or 0), special
            position = special.end()
            self._char = special["fence"][0]
            self._length = position - special.start("fence")
            self._fence, self._in_run = self._opening, True

    def _opening(self, buffer: str, position: int) -> tuple[int, bool]:
        """On the line that may open a fence: its run, then its info string."""
        if self._in_run:
            n_more, position = self._rest_of_run(buffer, position)
            self._length += n_more
        end = self._grammar.info_end[self._char].search(buffer, position)
        if end is None:
            return self._end(self._grammar.held, buffer, position), False
        if end[0] == "`":
            self._fence = None
            return end.end(), True
        self._fence = self._fenced
        return end.start(), True

    def _fenced(self, buffer: str, position: int) -> tuple[int, bool]:
        """Inside a fence, up to the line that closes it, or may do so."""
        pattern = _CLOSER[self._char, min(self._length, _RUN_SEARCHED)]
        for closer in pattern.finditer(buffer, position):
            position = closer.end()
            self._run = closer.end(1) - closer.start(1)
            if position == len(buffer):
                self._fence, self._in_run = self._closing, closer.end(1) == position
                return position, False
            if self._run >= self._length:
                closes = self._ends_line(buffer, position)
                if closes is None:
                    self._fence, self._in_run = self._closing, False
                    return position, False
                if closes:
                    self._fence = None
                    return position, True
        return self._end(self._grammar.fenced_tail, buffer, position), False

    def _closing(self, buffer: str, position: int) -> tuple[int, bool]:
        """On a line of the fence's character, up to where that says whether it closes."""
        if self._in_run:
            n_more, position = self._rest_of_run(buffer, position)
            self._run += n_more
        spaces = _SPACES.match(buffer, position)
        position = spaces.end() if spaces else position
        if position == len(buffer):
            return position, False
        closes = self._run >= self._length and self._ends_line(buffer, position)
        if closes is None:
            return position, False
        self._fence = None if closes else self._fenced
        return position, True

    def _ends_line(self, buffer: str, position: int) -> bool | None:
        """Whether a delimiter line ends here; None: that needs more text."""
        if buffer[position] == "\n" or self._grammar.terminator.match(buffer, position):
            return True
        return None if self._grammar.held.match(buffer, position) else False

    def _rest_of_run(self, buffer: str, position: int) -> tuple[int, int]:
        """How much longer the run is than known, and where it ends as far as can be seen."""
        run = _RUN[self._char].match(buffer, position)
        end = run.end() if run else position
        self._in_run = end == len(buffer)
        return end - position, end

    @staticmethod
    def _end(held: re.Pattern[str], buffer: str, position: int) -> int:
        """Where the text ends that is certain; the rest of the buffer is held back."""
        match = held.search(buffer, max(position, len(buffer) - _REACH))
        return match.start() if match else len(buffer)
