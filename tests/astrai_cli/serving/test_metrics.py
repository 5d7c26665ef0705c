"""`/metrics` as Prometheus' own parser reads it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess, running_server

from astrai_cli.engine.request import Finish, Piece, Usage
from astrai_cli.serving.metrics import ServerMetrics
from astrai_cli.serving.prometheus import CONTENT_TYPE, Family, Histogram, Sample, render
from astrai_cli.worker.streams import ChoiceEvent

Values = dict[str, float]


def values(page: str) -> Values:
    """Samples by name, with their labels' values behind it."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def scrape(server: ServerProcess) -> Values:
    with server.http() as http:
        response = http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == CONTENT_TYPE
    return values(response.text)


def ask(server: ServerProcess, status: int = 200, **fields: object) -> None:
    body = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 4, **fields}
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json={"ignore_eos": True, **body})
    assert answer.status_code == status


@pytest.fixture(scope="module")
def server(babbler: Path) -> ServerProcess:
    with running_server(babbler) as running:
        yield running


def test_requests_are_counted_and_timed(server: ServerProcess) -> None:
    ask(server)
    ask(server, stream=True)
    ask(server, status=400, top_k=-1)
    with server.http() as http:
        http.get("/no/such/path")

    found, stats = scrape(server), server.stats()

    assert found["astrai_up"] == 1
    assert found["astrai_http_requests_total /v1/chat/completions 200"] == 2
    assert found["astrai_http_requests_total /v1/chat/completions 400"] == 1
    assert found["astrai_http_requests_total other 404"] == 1
    assert found["astrai_time_to_first_token_seconds_count"] == 2
    assert found["astrai_inter_token_seconds_count"] == 2 * 3
    assert found["astrai_inter_token_seconds_sum"] > 0
    assert found["astrai_requests_finished_total length"] == 2
    assert found["astrai_requests_finished_total error"] == 0
    assert found["astrai_decode_tokens_total"] == stats["tokens_decoded"] == 6
    assert found["astrai_prefill_tokens_total"] == stats["tokens_prefilled"]
    assert found["astrai_prefix_reused_tokens_total"] == stats["tokens_reused"]
    assert found["astrai_step_seconds_count"] == stats["steps"]
    assert found["astrai_step_seconds_sum"] == pytest.approx(stats["step_seconds_total"])
    assert found["astrai_cache_cells"] == stats["cells_total"]
    for idle in ("requests_waiting", "requests_prefilling", "requests_decoding", "sessions"):
        assert found[f"astrai_{idle}"] == 0
    assert found["astrai_cache_cells_used"] == 0
    assert found["astrai_preemptions_total"] == 0


def test_it_answers_while_the_worker_is_down(server: ServerProcess) -> None:
    before = scrape(server)
    os.kill(server.stats()["worker"]["pid"], signal.SIGKILL)
    while (found := scrape(server))["astrai_up"]:
        time.sleep(0.01)
    assert "astrai_step_seconds_count" not in found
    assert (
        found["astrai_time_to_first_token_seconds_count"]
        == (before["astrai_time_to_first_token_seconds_count"])
    )
    while not (found := scrape(server))["astrai_up"]:
        time.sleep(0.05)
    assert found["astrai_worker_restarts_total"] == 1
    assert found["astrai_step_seconds_count"] == 0


def test_closing_the_timed_events_closes_the_events() -> None:
    closed = False

    async def events() -> AsyncGenerator[ChoiceEvent, None]:
        nonlocal closed
        try:
            yield 0, Piece("a", (1,))
            yield 0, Finish("stop", Usage(1, 1))
        finally:
            closed = True

    async def run() -> None:
        timed = ServerMetrics().timed(events())
        await anext(timed)
        await timed.aclose()

    asyncio.run(run())
    assert closed


@given(
    st.lists(st.floats(-10, 10), unique=True, max_size=5).map(sorted),
    st.lists(st.floats(-20, 20), max_size=20),
)
def test_buckets_hold_what_is_at_most_their_bound(
    bounds: list[float], observed: list[float]
) -> None:
    histogram = Histogram(bounds)
    for value in observed:
        histogram.observe(value)
    page = render([Family("h", "histogram", "help", histogram.samples())])
    (family,) = text_string_to_metric_families(page)
    counts = {
        float(sample.labels["le"]): sample.value
        for sample in family.samples
        if sample.name == "h_bucket"
    }
    assert counts == {
        bound: sum(value <= bound for value in observed) for bound in (*bounds, float("inf"))
    }


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('"\\\n')))
def test_any_text_survives_as_a_label(text: str) -> None:
    page = render([Family("g", "gauge", "help", [Sample(1, (("label", text),))])])
    (family,) = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"label": text}
