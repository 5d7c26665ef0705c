"""Drafts as clients of a server see them: in usage, statistics and metrics, never in answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, running_server

DRAFTS = {"speculate": "ngram", "adaptive_drafts": False}
REPEATING = "one two three four " * 6


def ask(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {"prompt": REPEATING, "max_tokens": 40, "temperature": 0, "ignore_eos": True, **fields}
    with server.http() as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    whole: dict[str, Any] = answer.json()
    return whole


@pytest.fixture(scope="module")
def server(babbler: Path) -> Iterator[ServerProcess]:
    with running_server(babbler, limits=DRAFTS) as running:
        yield running


def test_usage_statistics_and_metrics_count_the_same(server: ServerProcess) -> None:
    usage = ask(server)["usage"]
    assert usage["completion_tokens"] == 40
    details = usage["completion_tokens_details"]
    stats = server.stats()
    accepted, rejected = (details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected"))
    assert stats["drafts"] > 0
    assert accepted == stats["tokens_accepted"]
    assert accepted + rejected == stats["tokens_proposed"]
    assert stats["tokens_decoded"] == 39
    with server.http() as http:
        page = http.get("/metrics").text
    assert f"astrai_draft_accepted_tokens_total {accepted}" in page


def told(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of each choice all but the last bits of its log probabilities."""
    return [
        (
            choice["text"],
            choice["finish_reason"],
            choice["matched_stop"],
            choice["logprobs"] and choice["logprobs"]["tokens"],
        )
        for choice in answer["choices"]
    ]


def test_answers_are_those_of_a_server_without(server: ServerProcess, babbler: Path) -> None:
    questions: list[dict[str, Any]] = [
        {"logprobs": 2},
        {"temperature": 1, "seed": 7, "n": 2, "frequency_penalty": 0.5},
        {"stop": ["e"]},
    ]
    with running_server(babbler) as plain:
        for fields in questions:
            expected, answer = ask(plain, **fields), ask(server, **fields)
            assert told(answer) == told(expected)
            assert "completion_tokens_details" not in expected["usage"] or (
                "accepted_prediction_tokens" not in expected["usage"]["completion_tokens_details"]
            )
