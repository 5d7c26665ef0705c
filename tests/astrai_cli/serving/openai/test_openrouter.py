"""`--api-dialect openrouter`: usage on the last chunk, and errors to recover from."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from muse_fixtures import CHAT, CHAT_MMPROJ, CHAT_MODEL
from server_process import ServerProcess, running_server

CONTEXT = 256
RECOVERABLE = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
ELSEWHERE = re.compile(
    r"prompt is too long|exceeds the context window|maximum context length|context_length_exceeded"
    r"|reduce the length|too many tokens|token limit exceeded",
    re.IGNORECASE,
)
"""What agents take for a prompt that shortening would help."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limits = {"mmproj": str(CHAT_MMPROJ), "max_context": CONTEXT}
    with running_server(CHAT_MODEL, api_dialect="openrouter", limits=limits) as running:
        yield running


def post(server: ServerProcess, **fields: Any) -> Any:
    body = {"messages": user("Say hello."), "temperature": 0, "max_tokens": 96, **fields}
    with server.http() as http:
        return http.post("/v1/chat/completions", json=body)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chunks(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    lines = post(server, stream=True, **fields).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def error(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = post(server, **fields)
    assert answer.status_code == 400
    problem: dict[str, Any] = answer.json()["error"]
    assert problem["code"] == "context_length_exceeded"
    return problem


@pytest.mark.parametrize(
    "fields",
    [{"stream_options": {"include_usage": True}}, {"usage": {"include": True}}],
    ids=["OpenAI's option", "OpenRouter's"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_once_on_the_chunk_that_ends_the_answer(
    server: ServerProcess, fields: dict[str, Any], n: int
) -> None:
    *others, last = chunks(server, n=n, **fields)
    assert all("usage" not in chunk for chunk in others)
    assert last["choices"][0]["finish_reason"] == "stop"
    ends = [each["finish_reason"] for chunk in [*others, last] for each in chunk["choices"]]
    assert [end for end in ends if end] == ["stop"] * n
    whole = post(server, n=n).json()["usage"]
    whole.pop("prompt_tokens_details"), last["usage"].pop("prompt_tokens_details")
    assert last["usage"] == whole


@pytest.mark.parametrize(
    "fields",
    [{}, {"stream_options": {"include_usage": False}}, {"usage": {"include": False}}],
    ids=str,
)
def test_usage_comes_only_where_it_is_asked_for(
    server: ServerProcess, fields: dict[str, Any]
) -> None:
    assert all("usage" not in chunk for chunk in chunks(server, **fields))


def test_reasoning_has_the_name_that_openrouter_gives_it_too(server: ServerProcess) -> None:
    message = post(server, reasoning_effort="high").json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"]
    deltas = [each["choices"][0]["delta"] for each in chunks(server, reasoning_effort="high")]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message["reasoning"]
    chat = [*user("Say hello."), message, *user("Say hello.")]
    again = post(server, messages=chat, session_id="s").json()
    only_old = {key: value for key, value in message.items() if key != "reasoning"}
    chat = [*user("Say hello."), only_old, *user("Say hello.")]
    assert (
        post(server, messages=chat).json()["usage"]["prompt_tokens"]
        == (again["usage"]["prompt_tokens"])
    )
    chat[1] = {**only_old, "reasoning": "something else"}
    refused = post(server, messages=chat)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


def test_models_tell_their_context(server: ServerProcess) -> None:
    with server.http() as http:
        (model,) = http.get("/v1/models").json()["data"]
        assert model["context_length"] == CONTEXT
        assert http.get(f"/v1/models/{model['id']}").json() == model


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [None, 16, 200])
def test_a_prompt_over_its_budget_is_told_in_numbers(
    server: ServerProcess, max_tokens: int | None, stream: bool
) -> None:
    problem = error(server, messages=user("hi " * 300), max_tokens=max_tokens, stream=stream)
    match = RECOVERABLE.search(problem["message"])
    assert match is not None
    metadata = problem["metadata"]
    assert (int(match[1]), int(match[2])) == (
        metadata["prompt_tokens"],
        metadata["max_prompt_tokens"],
    )
    reserved = max_tokens or 1
    assert metadata["max_tokens"] == reserved
    assert metadata["max_prompt_tokens"] == CONTEXT - reserved
    assert metadata["context_length"] == CONTEXT
    assert metadata["error_type"] == "context_length_exceeded"
    # Exactly that many fewer fit.
    per_word = (int(match[1]) - tokens_of(server, "hi " * 10)) // 290
    surplus = int(match[1]) - int(match[2])
    fitting = "hi " * (300 - -(-surplus // per_word))
    assert post(server, messages=user(fitting), max_tokens=max_tokens or 1).status_code == 200


def tokens_of(server: ServerProcess, text: str) -> int:
    count: int = post(server, messages=user(text), max_tokens=1).json()["usage"]["prompt_tokens"]
    return count


@pytest.mark.parametrize("max_tokens", [CONTEXT, 100_000])
def test_an_answer_that_leaves_no_room_is_not_for_shortening(
    server: ServerProcess, max_tokens: int
) -> None:
    problem = error(server, max_tokens=max_tokens)
    assert ELSEWHERE.search(problem["message"]) is None
    assert problem["metadata"]["max_prompt_tokens"] == 0
    assert problem["metadata"]["max_tokens"] == max_tokens
    assert problem["metadata"]["context_length"] == CONTEXT
    assert problem["metadata"]["prompt_tokens"] == tokens_of(server, "Say hello.")


def test_texts_that_are_not_tokenized_are_told_by_the_least_they_can_be(
    server: ServerProcess,
) -> None:
    problem = error(server, messages=user("hello " * 500_000))
    metadata = problem["metadata"]
    assert RECOVERABLE.search(problem["message"])
    assert CONTEXT < metadata["prompt_tokens"] <= 500_000 * 6


def test_the_worker_counts_what_an_image_is(server: ServerProcess) -> None:
    data = base64.b64encode((CHAT / "red.png").read_bytes()).decode()
    url = {"url": f"data:image/png;base64,{data}"}

    def about(text: str) -> list[dict[str, Any]]:
        parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]
        return [{"role": "user", "content": parts}]

    whole = post(server, messages=about("What? "), max_tokens=1).json()["usage"]["prompt_tokens"]
    free = CONTEXT - whole
    problem = error(server, messages=about("What? "), max_tokens=free + 1)
    assert problem["metadata"]["prompt_tokens"] == whole
    match = RECOVERABLE.search(problem["message"])
    assert match is not None
    assert (int(match[1]), int(match[2])) == (whole, whole - 1)
    # Of a text that is too long by itself too.
    problem = error(server, messages=about("hi " * 300))
    n_text = error(server, messages=user("hi " * 300))["metadata"]["prompt_tokens"]
    assert problem["metadata"]["prompt_tokens"] > n_text + 1
