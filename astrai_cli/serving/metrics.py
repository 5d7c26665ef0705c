"""What `/metrics` tells: the engine's counters, the worker's state, and what the server timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_cli.engine.request import Piece
from astrai_cli.errors import EngineUnavailableError
from astrai_cli.serving.prometheus import Family, Histogram, Kind, Sample, render
from astrai_cli.worker.client import WorkerClient
from astrai_cli.worker.streams import ChoiceEvent

OTHER_ROUTE = "other"

# Seconds.
_FIRST_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_NEXT_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_GAUGES = {
    "queue": ("requests_waiting", "Requests in the queue."),
    "prefilling": ("requests_prefilling", "Requests whose prompt is being run."),
    "decoding": ("requests_decoding", "Requests that are being answered."),
    "sessions": ("sessions", "Named sessions."),
    "cells_used": ("cache_cells_used", "Cells of the cache that requests and sessions hold."),
    "cells_cached": ("cache_cells_cached", "Cells nobody holds whose keys and values are kept."),
    "cells_total": ("cache_cells", "Cells of the cache."),
}
_COUNTERS = {
    "tokens_prefilled": ("prefill_tokens_total", "Prompt tokens run through the model."),
    "tokens_decoded": ("decode_tokens_total", "Tokens of answers run through the model."),
    "tokens_reused": ("prefix_reused_tokens_total", "Prompt tokens found in the cache, not run."),
    "drafts": ("drafts_total", "Drafts of several tokens that one step checked."),
    "tokens_proposed": ("draft_tokens_total", "Tokens of drafts."),
    "tokens_accepted": ("draft_accepted_tokens_total", "Tokens of drafts that were right."),
    "preemptions": ("preemptions_total", "Requests put back into the queue for want of cells."),
    "images_encoded": ("images_encoded_total", "Images whose embeddings were computed."),
}


class ServerMetrics:
    """Counts and times what the server does. Used from one event loop."""

    def __init__(self) -> None:
        self._responses: Counter[tuple[str, int]] = Counter()
        self._first_token = Histogram(_FIRST_TOKEN_BOUNDS)
        self._next_token = Histogram(_NEXT_TOKEN_BOUNDS)

    def count_response(self, route: str, status: int) -> None:
        self._responses[route, status] += 1

    async def timed(
        self, events: AsyncGenerator[ChoiceEvent, None]
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """The same events; closing this closes them."""
        started = time.perf_counter()
        last: dict[int, float] = {}
        async with aclosing(events):
            async for choice, event in events:
                if isinstance(event, Piece) and event.token_ids:
                    now = time.perf_counter()
                    if choice not in last:
                        self._first_token.observe(now - started)
                    else:
                        # Those of one draft came together, and count alike.
                        n = len(event.token_ids)
                        for _ in range(n):
                            self._next_token.observe((now - last[choice]) / n)
                    last[choice] = now
                yield choice, event

    async def page(self, client: WorkerClient) -> str:
        """All metrics; without the engine's where the worker does not answer."""
        try:
            stats = await client.stats()
        except EngineUnavailableError:
            stats = {}
        up = Sample(int(stats.get("alive", False)))
        restarts = Sample(client.restart_count)
        return render(
            [
                _family("up", "gauge", "Whether the engine answers.", [up]),
                _family("worker_restarts_total", "counter", "Starts after the first.", [restarts]),
                *(_engine_families(stats) if stats else ()),
                *self._server_families(),
            ]
        )

    def _server_families(self) -> Iterator[Family]:
        responses = [
            Sample(count, (("route", route), ("status", str(status))))
            for (route, status), count in sorted(self._responses.items())
        ]
        yield _family("http_requests_total", "counter", "Requests that were answered.", responses)
        yield _family(
            "time_to_first_token_seconds",
            "histogram",
            "From handing a request to the engine to its answer's first token.",
            self._first_token.samples(),
        )
        yield _family(
            "inter_token_seconds",
            "histogram",
            "Between two tokens of an answer.",
            self._next_token.samples(),
        )


class CountResponses:
    """ASGI middleware: counts responses by route and status."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, routes: Mapping[Any, str]) -> None:
        """routes: the path of each endpoint; paths that lead nowhere are counted together."""
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Starlette notes in the scope where the path led.
                route = self._routes.get(scope.get("endpoint"), OTHER_ROUTE)
                self._metrics.count_response(route, message["status"])
            await send(message)

        await self._app(scope, receive, count)


def _engine_families(stats: Mapping[str, Any]) -> Iterator[Family]:
    for key, (name, meaning) in _GAUGES.items():
        yield _family(name, "gauge", meaning, [Sample(stats[key])])
    for key, (name, meaning) in _COUNTERS.items():
        yield _family(name, "counter", meaning, [Sample(stats[key])])
    yield _family(
        "step_seconds",
        "summary",
        "Time in the executor's steps.",
        [
            Sample(stats["step_seconds_total"], suffix="_sum"),
            Sample(stats["steps"], suffix="_count"),
        ],
    )
    yield _family(
        "requests_finished_total",
        "counter",
        "Requests that ended, by how.",
        [
            Sample(count, (("reason", reason),))
            for reason, count in stats["requests_finished"].items()
        ],
    )


def _family(name: str, kind: Kind, meaning: str, samples: Iterable[Sample]) -> Family:
    return Family(f"astrai_{name}", kind, meaning, list(samples))
