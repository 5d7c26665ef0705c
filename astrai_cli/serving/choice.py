"""One of the answers to a request, on its way from the worker's events to its client."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import NamedTuple

from astrai_cli.engine.detokenize import Detokenizer, TokenBytes
from astrai_cli.engine.request import Event, Finish, Piece, TokenLogprob
from astrai_cli.errors import EngineUnavailableError
from astrai_cli.serving.parsers import Delta, Ending, OutputParser, ToolCall
from astrai_cli.serving.parsers.output import Channel, End


class News(NamedTuple):
    """What an event brings to an answer."""

    deltas: Sequence[Delta]
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningCounter:
    """Tells the tokens of an answer's reasoning, from behind its header up to and with its end.

    It reads the ids themselves: the text of a piece need not be that of its ids, as some
    may be held back.
    """

    def __init__(self, parser: OutputParser, token_bytes: TokenBytes) -> None:
        self.count = 0
        self._parser = parser
        self._detokenizer = Detokenizer(token_bytes, write_special=True)

    def add(self, token_id: int) -> bool:
        """Whether the answer's next token is one of them."""
        is_reasoning = self._parser.is_reasoning
        self.count += is_reasoning
        self._parser.feed(self._detokenizer.feed(token_id))
        return is_reasoning


class Choice:
    """One answer, as far as it has come.

    token_ids: all that were generated. logprobs: of those the client may see.
    """

    def __init__(
        self,
        index: int,
        parser: OutputParser,
        counter: ReasoningCounter | None,
        *,
        stop_token_ids: Collection[int] = (),
        shows_reasoning: bool = True,
    ) -> None:
        """counter: None for a model that does not reason. stop_token_ids: the request's own."""
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self._parser = parser
        self._stop_token_ids = stop_token_ids
        self._shows_reasoning = shows_reasoning
        self._deltas: list[Delta] = []
        self._counter = counter
        self._finish: Finish | None = None
        self._ending: Ending | None = None
        self.calls: list[tuple[str, ToolCall]] = []

    @property
    def content(self) -> str:
        return self._text_of("content")

    @property
    def reasoning(self) -> str:
        return self._text_of("reasoning")

    @property
    def passages(self) -> list[Delta]:
        """Its texts in their order: where the channel changes, another one begins."""
        return [
            Delta(channel, "".join(delta.text for delta in deltas))
            for channel, deltas in groupby(self._deltas, lambda delta: delta.channel)
        ]

    @property
    def finish(self) -> Finish:
        """Its end. Raises EngineUnavailableError where it has none."""
        if self._finish is None:
            raise EngineUnavailableError("the answer has no end")
        return self._finish

    @property
    def finish_reason(self) -> str:
        assert self._ending is not None
        return self._ending.finish_reason

    @property
    def is_cut(self) -> bool:
        """Whether a stop was removed, so that what is shown is not what was generated."""
        return self._how_it_ended() == "stop"

    @property
    def n_reasoning(self) -> int:
        """Tokens of the reasoning."""
        return 0 if self._counter is None else self._counter.count

    def take(self, event: Event) -> News:
        """Add an event.

        Raises InvalidToolOutputError where the model's calls cannot be delivered.
        """
        if isinstance(event, Finish):
            self._finish = event
            self._ending = self._parser.finish(self._how_it_ended())
            self.calls = [(f"call_{uuid.uuid4().hex}", call) for call in self._ending.tool_calls]
            news = News(self._ending.deltas)
        else:
            news = self._take_piece(event)
        self._deltas += news.deltas
        self.logprobs += news.logprobs
        return news

    def _text_of(self, channel: Channel) -> str:
        return "".join(delta.text for delta in self._deltas if delta.channel == channel)

    def _take_piece(self, piece: Piece) -> News:
        self.token_ids += piece.token_ids
        deltas = self._parser.feed(piece.text)
        if self._parser.failed:
            # Nothing can mend it: whoever reads on only pays for tokens that are thrown away.
            self._parser.finish("eos")
        if self._counter is None:
            return News(deltas, piece.logprobs)
        reasons = [self._counter.add(token_id) for token_id in piece.token_ids]
        if self._shows_reasoning:
            return News(deltas, piece.logprobs)
        # One that ends the answer has no log probability.
        pairs = zip(piece.logprobs, reasons, strict=False)
        return News(deltas, [each for each, hidden in pairs if not hidden])

    def _how_it_ended(self) -> End:
        if self.finish.reason == "length":
            return "length"
        stopped = self.token_ids[-1:] and self.token_ids[-1] in self._stop_token_ids
        return "stop" if stopped or self.finish.matched_stop is not None else "eos"
