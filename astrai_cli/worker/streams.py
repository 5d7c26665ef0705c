"""The events of one request, between the worker's reports and the reader."""

from __future__ import annotations

import asyncio
from collections import deque

from astrai_cli.engine.request import Event
from astrai_cli.errors import AstraiError

ChoiceEvent = tuple[int, Event]
"""An event, and the number of the answer it belongs to."""


class EventQueue:
    """The bounded buffer between the worker's reports and one reader."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._events: deque[ChoiceEvent] = deque()
        self._error: AstraiError | None = None
        self._ready = asyncio.Event()

    def put(self, event: ChoiceEvent) -> bool:
        """Add an event; False if there is no room for it. After the stream's end it is dropped."""
        if self._error is None:
            if len(self._events) >= self._capacity:
                return False
            self._events.append(event)
            self._ready.set()
        return True

    def fail(self, error: AstraiError) -> None:
        """End the stream with `error`, after the events that wait already."""
        self._error = self._error or error
        self._ready.set()

    async def get(self) -> ChoiceEvent:
        """The next event. Raises the error that ended the stream."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()
