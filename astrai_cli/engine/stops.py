"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astrai_cli.errors import InvalidInputError

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_HEADER_TOKENS = 64
NO_TOKEN = -1


def check_stops(stops: Sequence[str]) -> None:
    """Raises InvalidInputError for over 64 stop strings, or one not of 1 to 1,024 characters."""
    if len(stops) > MAX_STOPS:
        raise InvalidInputError(
            f"{len(stops)} stop strings; at most {MAX_STOPS} are taken", param="stop"
        )
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidInputError(
                f"a stop string has {len(stop)} characters; it must have 1 to {MAX_STOP_CHARS}",
                param="stop",
            )


def check_stop_ids(stop_token_ids: Sequence[int]) -> None:
    """Raises InvalidInputError for over 64 ids."""
    if len(stop_token_ids) > MAX_STOPS:
        raise InvalidInputError(
            f"{len(stop_token_ids)} stop_token_ids; at most {MAX_STOPS} are taken",
            param="stop_token_ids",
        )


class _Automaton:
    """Aho and Corasick's automaton (1975); its states are the stop strings' prefixes, 0 the empty.

    depth: each state's length. match: the longest stop string that ends each state, if any.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.depth = [0]
        self.match: list[str | None] = [None]
        self._children: dict[tuple[int, str], int] = {}
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self.depth)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            child = self._children.setdefault((state, char), len(self.depth))
            if child == len(self.depth):
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = child
        self.match[state] = stop

    def _link(self) -> None:
        """Find each state's longest proper suffix that is a state, shorter states first."""
        edges = sorted(self._children.items(), key=lambda edge: self.depth[edge[1]])
        for (parent, char), child in edges:
            if parent:
                self._fail[child] = self.step(self._fail[parent], char)
            self.match[child] = self.match[child] or self.match[self._fail[child]]

    def step(self, state: int, char: str) -> int:
        while (child := self._children.get((state, char))) is None:
            if not state:
                return 0
            state = self._fail[state]
        return child


class StopMatcher:
    """Passes text on up to the first stop string, holding back only what may become one.

    The stop string that is complete first wins, and of several complete at the
    same character the longest; so the answer does not depend on how the text was
    cut into pieces. Takes time linear in the text.

    matched: the stop string found, or None. After one, all further text is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InvalidInputError as check_stops does."""
        check_stops(stops)
        self.matched: str | None = None
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that is now known to belong to the answer."""
        if self.matched is not None:
            return ""
        if self._automaton is None:
            return text
        automaton = self._automaton
        state = self._state
        for position, char in enumerate(text):
            state = automaton.step(state, char)
            matched = automaton.match[state]
            if matched is not None:
                self.matched = matched
                whole = self._held + text[: position + 1]
                self._held = ""
                return whole[: -len(matched)]
        self._state = state
        whole = self._held + text
        released = len(whole) - automaton.depth[state]
        self._held = whole[released:]
        return whole[:released]

    def flush(self, hidden: str = "") -> str:
        """The text held back, now that none follows but `hidden`, which is not shown itself.

        A stop string that is complete within `hidden` is found, and removed from the text.
        """
        n_held = len(self._held)
        whole = self.feed(hidden) + self._held
        self._held = ""
        self._state = 0
        return whole[:n_held]


class MessageHeaders:
    """Tells the tokens of message headers, in which no stop string is looked for.

    A header goes from a token that begins it to one that ends it, both included, and the
    prompt may end within one. One that does not end within MAX_HEADER_TOKENS is none.
    """

    def __init__(self, ids: tuple[int, int] | None, prompt: Sequence[int]) -> None:
        """ids: of the tokens that begin and end a header; None: there are no headers."""
        self._begin, self._end = ids or (NO_TOKEN, NO_TOKEN)
        marks = (token_id for token_id in reversed(prompt) if token_id in {self._begin, self._end})
        self._n_left = MAX_HEADER_TOKENS if next(marks, None) == self._begin else 0

    def take(self, token_id: int) -> bool:
        """Whether the next token is of a header."""
        if token_id == self._begin:
            self._n_left = MAX_HEADER_TOKENS
        is_inside = self._n_left > 0
        self._n_left = 0 if token_id == self._end else max(self._n_left - 1, 0)
        return is_inside
