"""What the server refuses, and how: one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, running_server

CHAT = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": CHAT, "max_tokens": 1, **fields}).encode()


PIXEL = "data:image/png;base64,iVBORw0KGgo="


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def said_by(role: str, content: Any, **fields: Any) -> bytes:
    return chat(messages=[{"role": role, "content": content, **fields}])


WRONG_SHAPE = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"messages": "\xff"}',
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "deep": b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "huge number": b'{"messages": [], "seed": 1' + b"0" * 6000 + b"}",
    "a list": b"[]",
    "no messages": b"{}",
    "null messages": b'{"messages": null}',
    "messages a string": chat(messages="hi"),
    "message a string": chat(messages=["hi"]),
    "no content": chat(messages=[{"role": "user"}]),
    "content a number": said_by("user", 5),
    "reasoning a list": said_by("assistant", "x", reasoning=[1]),
    "part without text": said_by("user", [{"type": "text"}]),
    "temperature a string": chat(temperature="1"),
    "max_tokens a float": chat(max_tokens=1.5),
    "stream a number": chat(stream=1),
    "stop a number": chat(stop=7),
    "model a number": chat(model=7),
    "n a float": chat(n=1.5),
    "logit_bias a list": chat(logit_bias=[[1, 2]]),
    "a bias a string": chat(logit_bias={"1": "5"}),
    "a stop id a string": chat(stop_token_ids=["1"]),
    "logprobs a number": chat(logprobs=1),
    "session_id a number": chat(session_id=1),
}

OUT_OF_BOUNDS = {
    "temperature": chat(temperature=2.1),
    "top_p": chat(top_p=0),
    "top_k": chat(top_k=-1),
    "min_p": chat(min_p=1.5),
    "max_tokens": chat(max_tokens=0),
    "seed": chat(seed=2**63),
    "messages": chat(messages=[]),
    "messages.0.role": said_by("robot", "hi"),
    "stop": chat(stop=["x"] * 17),
    "stop.0": chat(stop=["y" * 1025]),
    "n": chat(n=9),
    "frequency_penalty": chat(frequency_penalty=2.5),
    "presence_penalty": chat(presence_penalty=-2.5),
    "repetition_penalty": chat(repetition_penalty=0),
    "logit_bias": chat(logit_bias={"99999999": 1}),
    "logit_bias.1": chat(logit_bias={"1": 101}),
    "logit_bias.one.[key]": chat(logit_bias={"one": 1}),
    "top_logprobs": chat(logprobs=True, top_logprobs=21),
    "stop_token_ids": chat(stop_token_ids=[-1]),
    "session_id": chat(session_id=""),
    "metadata": chat(metadata={str(n): "x" for n in range(17)}),
}

UNSUPPORTED = {
    "tools": chat(tools=[{"type": "function", "function": {"name": "f"}}]),
    "tool_choice": chat(tool_choice="required"),
    "functions": chat(functions=[]),
    "response_format": chat(response_format={"type": "json_object"}),
    "modalities": chat(modalities=["text", "audio"]),
    "audio": chat(audio={"voice": "alloy", "format": "wav"}),
    "store": chat(store=True),
    "service_tier": chat(service_tier="flex"),
    "reasoning_effort": chat(reasoning_effort="low"),
    "thinking_token_budget": chat(thinking_token_budget=1),
    "grammar": chat(grammar="x"),
    "stop_regex": chat(stop_regex="x"),
    "cache_salt": chat(cache_salt="x"),
    "guided_json": chat(guided_json={}),
    "structured_outputs": chat(structured_outputs={}),
    "regex": chat(regex="x"),
    "ebnf": chat(ebnf="x"),
    "add_generation_prompt": chat(add_generation_prompt=False),
    "continue_final_message": chat(continue_final_message=True),
    "never_heard_of": chat(never_heard_of=1),
    "messages.0.content.0": said_by("user", [{"type": "input_audio", "input_audio": {}}]),
    "messages.0.content.0.image_url.url": said_by("user", [image("https://a.example/b.png")]),
    "messages.0.content.0.image_url.detail": said_by(
        "user", [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]
    ),
    "messages": said_by("user", [image(PIXEL)]),
    "messages.0": said_by(
        "assistant", "x", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    ),
    "parallel_tool_calls": chat(parallel_tool_calls=False),
    "reasoning.enabled": chat(reasoning={"enabled": False}),
    "reasoning.max_tokens": chat(reasoning={"max_tokens": 9}),
}

HARMLESS = chat(
    reasoning={"exclude": None, "enabled": True},
    include_reasoning=True,
    parallel_tool_calls=True,
    n=1,
    frequency_penalty=0,
    logit_bias={},
    logprobs=False,
    tools=[],
    tool_choice="none",
    response_format={"type": "text"},
    modalities=["text"],
    grammar=None,
    thinking_token_budget=None,
    add_generation_prompt=True,
    continue_final_message=False,
    stop=None,
    user="me",
    service_tier="auto",
)


def post(server: ServerProcess, body: bytes) -> tuple[int, dict[str, Any]]:
    with server.http() as http:
        response = http.post("/v1/chat/completions", content=body)
        return response.status_code, response.json()


@pytest.mark.parametrize("name", WRONG_SHAPE)
def test_a_wrong_shape_is_422_with_details(parrot_server: ServerProcess, name: str) -> None:
    status, answer = post(parrot_server, WRONG_SHAPE[name])
    assert status == 422
    assert answer["error"]["type"] == "invalid_request_error"
    assert len(answer["detail"]) >= 1
    for detail in answer["detail"]:
        assert detail.keys() == {"loc", "msg", "type"}
        assert detail["loc"][0] == "body"


@pytest.mark.parametrize("param", OUT_OF_BOUNDS)
def test_a_value_out_of_bounds_is_400(parrot_server: ServerProcess, param: str) -> None:
    status, answer = post(parrot_server, OUT_OF_BOUNDS[param])
    assert status == 400
    assert answer["error"]["code"] == "invalid_value"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_what_is_not_honoured_is_refused(parrot_server: ServerProcess, param: str) -> None:
    status, answer = post(parrot_server, UNSUPPORTED[param])
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    assert answer["error"]["param"] == param


def test_what_asks_for_nothing_special_is_accepted(parrot_server: ServerProcess) -> None:
    assert post(parrot_server, HARMLESS)[0] == 200


def test_pairs_that_contradict_each_other_are_refused(parrot_server: ServerProcess) -> None:
    for body in (
        chat(max_completion_tokens=1),
        chat(stream_options={"include_usage": True}),
        chat(top_logprobs=2),
        chat(n=2, session_id="s"),
    ):
        status, answer = post(parrot_server, body)
        assert (status, answer["error"]["code"]) == (400, "invalid_value")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_400(parrot_server: ServerProcess, stream: bool) -> None:
    long = [{"role": "user", "content": "word " * 5000}]
    status, answer = post(parrot_server, chat(messages=long, stream=stream))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    status, answer = post(parrot_server, chat(max_tokens=5000, stream=stream))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_an_unknown_model_is_404(parrot_server: ServerProcess) -> None:
    status, answer = post(parrot_server, chat(model="gpt-5"))
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    for model in ("astrai", "parrot-llama-0", None):
        assert post(parrot_server, chat(model=model))[0] == 200


def test_a_body_over_the_limit_is_413(parrot_server: ServerProcess) -> None:
    status, answer = post(parrot_server, b" " * (32 * 2**20 + 1))
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_the_limit_of_bodies_can_be_lowered(parrot: Path) -> None:
    with running_server(parrot, max_request_bytes=2048) as server:
        status, answer = post(server, chat().ljust(2049))
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        assert "2048" in answer["error"]["message"]
        assert post(server, chat())[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
    ],
)
def test_other_paths_and_methods_have_error_objects_too(
    parrot_server: ServerProcess, method: str, path: str, status: int
) -> None:
    with parrot_server.http() as http:
        response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("depth", "is_read"), [(198, True), (202, False)])
def test_json_is_read_up_to_a_depth(
    parrot_server: ServerProcess, depth: int, is_read: bool
) -> None:
    status, answer = post(parrot_server, b"[" * depth + b"]" * depth)
    assert status == 422
    assert ("recursion limit" not in answer["error"]["message"]) == is_read


def test_keys_of_any_length_do_not_come_back_whole(parrot_server: ServerProcess) -> None:
    status, answer = post(parrot_server, chat(**{"k" * 100_000: 1}))
    assert status == 400
    assert len(json.dumps(answer)) < 1000


def test_many_errors_are_told_in_part(parrot_server: ServerProcess) -> None:
    status, answer = post(parrot_server, chat(messages=[5] * 10_000))
    assert status == 422
    assert len(answer["detail"]) == 20


@pytest.mark.parametrize("text", ["hello " * 2_000_000, " " * 10_000_000], ids=["words", "spaces"])
def test_texts_that_no_context_holds_are_not_tokenized(
    parrot_server: ServerProcess, text: str
) -> None:
    """Tokenizing these would take gigabytes, or make the tokenizer give up."""
    status, answer = post(parrot_server, said_by("user", text))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "characters" in answer["error"]["message"]


def test_more_messages_than_any_context_holds(parrot_server: ServerProcess) -> None:
    status, answer = post(parrot_server, chat(messages=CHAT * 20_000))
    assert (status, answer["error"]["param"]) == (400, "messages")
