"""Random requests, good and bad, and what may become of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from enum import Enum
from random import Random
from typing import Any
from urllib.parse import quote

import httpx

from astrai_cli.benchmark.load.requests import random_words

COMPLETIONS = "/v1/chat/completions"
SESSIONS = "/v1/sessions"
# Shared by all clients, so that they wait for each other and find each other's histories.
SESSION_IDS = ("anna", "berta/2", "çelik", "dora", "emil", "friedrich")
MAX_MESSAGES = 6
# What any request may meet: the queue is full, the worker is down.
BUSY_STATUSES = {429, 503}


class Fate(Enum):
    """What became of a request.

    LOST: it got neither an answer nor an error. WRONG: it got one that it should not get.
    """

    ANSWERED = "answered"
    REFUSED = "refused as it should be"
    TURNED_AWAY = "turned away by a server that was busy or restarting"
    FAILED = "ended with an error"
    ABANDONED = "abandoned by its client"
    LOST = "lost"
    WRONG = "wrong"


class RandomClient:
    """Sends one random request after the other."""

    def __init__(
        self, http: httpx.AsyncClient, random: Random, max_context: int, max_request_bytes: int
    ) -> None:
        self._http = http
        self._random = random
        self._max_context = max_context
        self._max_request_bytes = max_request_bytes
        self._histories: dict[str, list[dict[str, str]]] = {name: [] for name in SESSION_IDS}
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[Fate]]]] = {
            "whole answer": (6, self._whole),
            "streamed answer": (10, self._streamed),
            "disconnect in mid-stream": (4, self._disconnect),
            "cancel before the answer": (3, self._cancel),
            "session turn": (6, self._turn),
            "session reset": (1, self._reset),
            "session delete": (1, self._delete),
            "malformed body": (2, self._malformed),
            "too long prompt": (1, self._too_long),
            "oversize body": (1, self._oversize),
        }

    async def send(self) -> tuple[str, Fate]:
        """Send one request; its kind and its fate."""
        names = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        (name,) = self._random.choices(names, weights)
        try:
            return name, await self._kinds[name][1]()
        except httpx.HTTPError:
            return name, Fate.LOST

    def _body(self, **fields: Any) -> dict[str, Any]:
        """A request that can be served."""
        n_words = self._random.choice((1, 5, 20, 60))
        return {
            "messages": [{"role": "user", "content": random_words(self._random, n_words)}],
            "max_tokens": self._random.randint(1, 48),
            "temperature": self._random.choice((0, 0.7, 1)),
            "ignore_eos": self._random.random() < 0.7,
            **fields,
        }

    async def _whole(self) -> Fate:
        response = await self._http.post(COMPLETIONS, json=self._body())
        if response.status_code != 200:
            return _refusal(response)
        return Fate.ANSWERED if response.json()["choices"][0]["finish_reason"] else Fate.LOST

    async def _streamed(self) -> Fate:
        body = self._body(stream=True)
        async with self._http.stream("POST", COMPLETIONS, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return _refusal(response)
            text = "".join([part async for part in response.aiter_text()])
        if '"error"' in text:
            return Fate.FAILED
        return Fate.ANSWERED if text.endswith("data: [DONE]\n\n") else Fate.LOST

    async def _disconnect(self) -> Fate:
        """Leave after some of the answer."""
        n_lines = self._random.randint(1, 20)
        body = self._body(stream=True, ignore_eos=True, max_tokens=200)
        async with self._http.stream("POST", COMPLETIONS, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return _refusal(response)
            async for line in response.aiter_lines():
                n_lines -= 1
                if '"error"' in line:
                    return Fate.FAILED
                if not n_lines:
                    return Fate.ABANDONED
        return Fate.LOST

    async def _cancel(self) -> Fate:
        """Leave at some moment after asking, most often while the request waits or prefills."""
        body = self._body(max_tokens=200, ignore_eos=True)
        asking = asyncio.create_task(self._http.post(COMPLETIONS, json=body))
        await asyncio.wait([asking], timeout=self._random.uniform(0.0, 0.2))
        if asking.cancel():
            await asyncio.gather(asking, return_exceptions=True)
            return Fate.ABANDONED
        response = await asking
        return Fate.ANSWERED if response.status_code == 200 else _refusal(response)

    async def _turn(self) -> Fate:
        """The next turn of a conversation; sometimes its client leaves, and it is begun anew."""
        session_id = self._random.choice(SESSION_IDS)
        messages = self._histories[session_id]
        if len(messages) >= MAX_MESSAGES or self._random.random() < 0.1:
            messages.clear()
        messages.append({"role": "user", "content": random_words(self._random, 8)})
        body = self._body(messages=messages, session_id=session_id, max_tokens=16)
        patience = None if self._random.random() < 0.8 else self._random.uniform(0.0, 0.5)
        try:
            async with asyncio.timeout(patience):
                response = await self._http.post(COMPLETIONS, json=body)
        except TimeoutError:
            messages.pop()
            return Fate.ABANDONED
        if response.status_code != 200:
            messages.pop()
            return _refusal(response)
        answer = response.json()["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": answer})
        return Fate.ANSWERED

    async def _reset(self) -> Fate:
        name = quote(self._random.choice(SESSION_IDS), safe="")
        return _ended(await self._http.post(f"{SESSIONS}/{name}/reset"))

    async def _delete(self) -> Fate:
        name = quote(self._random.choice(SESSION_IDS), safe="")
        return _ended(await self._http.delete(f"{SESSIONS}/{name}"))

    async def _malformed(self) -> Fate:
        good = json.dumps(self._body())
        bad = self._random.choice(
            (
                good[: self._random.randrange(len(good))],
                json.dumps(self._body(messages="hi")),
                json.dumps(self._body(max_tokens=-1)),
                json.dumps(self._body(no_such_field=1)),
                "\x00" * self._random.randint(1, 1000),
            )
        )
        response = await self._http.post(COMPLETIONS, content=bad)
        return _refusal(response, 400, 422)

    async def _too_long(self) -> Fate:
        messages = [{"role": "user", "content": random_words(self._random, 2 * self._max_context)}]
        response = await self._http.post(COMPLETIONS, json=self._body(messages=messages))
        return _refusal(response, 400)

    async def _oversize(self) -> Fate:
        response = await self._http.post(COMPLETIONS, content=b" " * (self._max_request_bytes + 1))
        return _refusal(response, 413)


def _ended(response: httpx.Response) -> Fate:
    """A session may be unknown, or have requests in flight."""
    return Fate.ANSWERED if response.status_code == 200 else _refusal(response, 404, 409)


def _refusal(response: httpx.Response, *expected: int) -> Fate:
    """The fate of a request that got no answer, but one of these statuses or a busy server's."""
    if not response.json()["error"]["message"]:
        return Fate.WRONG
    if response.status_code in BUSY_STATUSES:
        return Fate.TURNED_AWAY
    return Fate.REFUSED if response.status_code in expected else Fate.WRONG
