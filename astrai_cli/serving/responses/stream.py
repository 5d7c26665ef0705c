"""The events of a streamed response: each item is opened, filled and closed, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astrai_cli.serving.builder import ResponseContext
from astrai_cli.serving.choice import Choice
from astrai_cli.serving.parsers import ToolCall
from astrai_cli.serving.parsers.output import Channel
from astrai_cli.serving.responses.output import (
    PREFIXES,
    Object,
    call_item,
    ended_response,
    last_status,
    needs_message,
    new_id,
    response_object,
    text_item,
    text_part,
)
from astrai_cli.serving.responses.requests import ResponseRequest
from astrai_cli.serving.transport.sse import json_text, named_event

_TEXT_EVENTS = {"reasoning": "reasoning_text", "content": "output_text"}


@dataclass(slots=True)
class _OpenItem:
    """The item whose text is on its way."""

    channel: Channel
    item_id: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[Object] = field(default_factory=list)


class ResponseEvents:
    """Writes one response's events, in their order and numbered."""

    def __init__(self, ctx: ResponseContext, request: ResponseRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._n_events = 0
        self._output: list[Object] = []
        self._open: _OpenItem | None = None

    def start(self) -> str:
        response = response_object(self._ctx, self._request, [])
        kinds = ("response.created", "response.in_progress")
        return "".join(self._event(kind, response=response) for kind in kinds)

    def text(self, channel: Channel, text: str, logprobs: Sequence[Object] = ()) -> str:
        """The next text of a channel, in an item of its own where another one was open."""
        before = ""
        if self._open is None or self._open.channel != channel:
            before = self.close() + self._begin(channel)
        item = self._open
        assert item is not None
        item.texts.append(text)
        item.logprobs += logprobs
        told = {"logprobs": list(logprobs)} if channel == "content" else {}
        return before + self._text_event("delta", item, delta=text, **told)

    def close(self, status: str = "completed") -> str:
        """End the item that is open, where one is."""
        item, self._open = self._open, None
        if item is None:
            return ""
        text = "".join(item.texts)
        told = {"logprobs": item.logprobs} if item.channel == "content" else {}
        part = text_part(item.channel, text, item.logprobs)
        done = text_item(item.channel, item.item_id, status, [part])
        events = (
            self._text_event("done", item, text=text, **told),
            self._part_event("done", item, part),
            self._item_event("done", done),
        )
        self._output.append(done)
        return "".join(events)

    def end_choice(self, choice: Choice) -> str:
        """The end of the answer's last text, and its calls."""
        message = self.text("content", "") if needs_message(choice) and not self._says() else ""
        closed = self.close(last_status(choice))
        return message + closed + "".join(self._call(*call) for call in choice.calls)

    def end(self, choice: Choice) -> str:
        response = ended_response(self._ctx, self._request, self._output, choice)
        return self._event(f"response.{response['status']}", response=response)

    def fail(self, error: Object) -> str:
        """The last event of a response that an error cut short."""
        fields = {"status": "failed", "error": error}
        response = response_object(self._ctx, self._request, self._output, **fields)
        return self._event("response.failed", response=response)

    def _says(self) -> bool:
        return self._open is not None and self._open.channel == "content"

    def _begin(self, channel: Channel) -> str:
        item = self._open = _OpenItem(channel, new_id(PREFIXES[channel]))
        added = text_item(channel, item.item_id, "in_progress", [])
        return self._item_event("added", added) + self._part_event(
            "added", item, text_part(channel, "")
        )

    def _call(self, call_id: str, call: ToolCall) -> str:
        item_id, arguments = new_id("fc"), json_text(call.arguments)
        done = call_item(call_id, call, item_id, "completed", arguments)
        where = {"item_id": item_id, "output_index": len(self._output)}
        kind = "response.function_call_arguments"
        events = (
            self._item_event("added", call_item(call_id, call, item_id, "in_progress", "")),
            self._event(f"{kind}.delta", **where, delta=arguments),
            self._event(f"{kind}.done", **where, name=call.name, arguments=arguments),
            self._item_event("done", done),
        )
        self._output.append(done)
        return "".join(events)

    def _item_event(self, what: str, item: Object) -> str:
        index = len(self._output)
        return self._event(f"response.output_item.{what}", output_index=index, item=item)

    def _part_event(self, what: str, item: _OpenItem, part: Object) -> str:
        return self._event(f"response.content_part.{what}", **self._place(item), part=part)

    def _text_event(self, what: str, item: _OpenItem, **fields: Any) -> str:
        kind = f"response.{_TEXT_EVENTS[item.channel]}.{what}"
        return self._event(kind, **self._place(item), **fields)

    def _place(self, item: _OpenItem) -> Object:
        return {"item_id": item.item_id, "output_index": len(self._output), "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return named_event(kind, event)
