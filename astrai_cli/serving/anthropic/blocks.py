"""The blocks of an answer's content: whole, and as the events of a stream that build the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from astrai_cli.serving.anthropic.signatures import sign
from astrai_cli.serving.choice import Choice
from astrai_cli.serving.parsers import Delta, ToolCall
from astrai_cli.serving.transport.sse import json_text, named_event


def content_of(choice: Choice, *, shows_thinking: bool) -> list[dict[str, Any]]:
    """The content of a finished answer: a block for each passage, then one for each call."""
    passages = [_whole(passage, shows_thinking) for passage in choice.passages]
    calls = [
        {**_tool_use(call_id, call), "input": call.arguments} for call_id, call in choice.calls
    ]
    return passages + calls


class BlockStream:
    """The events of one answer's blocks. A block stays open for as long as its channel does.

    Of thinking that is not shown there are no deltas, but the block opens as it begins.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._n_blocks = 0
        self._open: list[Delta] = []

    def add(self, deltas: Sequence[Delta]) -> str:
        """The events of the next texts."""
        return "".join(event for delta in deltas for event in self._add(delta))

    def end(self, calls: Sequence[tuple[str, ToolCall]]) -> str:
        """The events that end the last text, and those of the calls behind it."""
        events = [*self._close()]
        for call_id, call in calls:
            events.append(self._start(_tool_use(call_id, call)))
            partial = json_text(call.arguments)
            events.append(self._delta({"type": "input_json_delta", "partial_json": partial}))
            events.append(self._stop())
        return "".join(events)

    def _add(self, delta: Delta) -> Iterator[str]:
        if not self._open or self._open[0].channel != delta.channel:
            yield from self._close()
            yield self._start(_block(delta.channel == "reasoning"))
        self._open.append(delta)
        if delta.channel == "content":
            yield self._delta({"type": "text_delta", "text": delta.text})
        elif self._shows_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": delta.text})

    def _close(self) -> Iterator[str]:
        if not self._open:
            return
        if self._open[0].channel == "reasoning":
            thinking = "".join(delta.text for delta in self._open)
            signature = sign(thinking, is_shown=self._shows_thinking)
            yield self._delta({"type": "signature_delta", "signature": signature})
        yield self._stop()
        self._open = []

    def _start(self, block: dict[str, Any]) -> str:
        return self._event("content_block_start", content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return self._event("content_block_delta", delta=delta)

    def _stop(self) -> str:
        event = self._event("content_block_stop")
        self._n_blocks += 1
        return event

    def _event(self, kind: str, **fields: Any) -> str:
        return named_event(kind, {"type": kind, "index": self._n_blocks, **fields})


def _whole(passage: Delta, shows_thinking: bool) -> dict[str, Any]:
    if passage.channel == "content":
        return {**_block(is_thinking=False), "text": passage.text}
    thinking = passage.text if shows_thinking else ""
    signature = sign(passage.text, is_shown=shows_thinking)
    return {**_block(is_thinking=True), "thinking": thinking, "signature": signature}


def _block(is_thinking: bool) -> dict[str, Any]:
    """A block of text without the text."""
    if is_thinking:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _tool_use(call_id: str, call: ToolCall) -> dict[str, Any]:
    """The block of a call without its input."""
    return {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}
