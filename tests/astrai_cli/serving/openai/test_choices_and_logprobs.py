"""Choices, log probabilities, penalties and stops over HTTP, with the official client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from parrot import SAYING
from server_process import ServerProcess

CHAT: list[Any] = [{"role": "user", "content": "hi"}]
OPTIONS: dict[str, Any] = {"model": "astrai", "messages": CHAT, "seed": 3, "max_tokens": 12}


def whole(server: ServerProcess, **options: Any) -> ChatCompletion:
    return server.openai().chat.completions.create(**{**OPTIONS, **options})


def streamed(server: ServerProcess, **options: Any) -> list[dict[str, Any]]:
    """What each choice's chunks add up to, and what the whole used."""
    chunks = server.openai().chat.completions.create(
        **{**OPTIONS, **options}, stream=True, stream_options={"include_usage": True}
    )
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            so_far = choices.setdefault(choice.index, {"text": "", "logprobs": []})
            so_far["text"] += choice.delta.content or ""
            if choice.logprobs is not None:
                so_far["logprobs"] += choice.logprobs.content or []
            so_far["finish_reason"] = choice.finish_reason
        usage = chunk.usage
    assert usage is not None
    return [{**choices[index], "usage": usage} for index in range(len(choices))]


def test_choices_are_answers_of_their_own_and_the_prompt_counts_once(
    babbler_server: ServerProcess,
) -> None:
    one = whole(babbler_server)
    three = whole(babbler_server, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].message.content == one.choices[0].message.content
    assert len({choice.message.content for choice in three.choices}) == 3
    assert one.usage is not None
    assert three.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens > one.usage.completion_tokens
    assert three.usage.prompt_tokens_details is not None
    again = streamed(babbler_server, n=3)
    assert [each["text"] for each in again] == [each.message.content for each in three.choices]
    assert [each["finish_reason"] for each in again] == [
        each.finish_reason for each in three.choices
    ]
    assert again[0]["usage"].total_tokens == three.usage.total_tokens


def test_streamed_choices_begin_before_the_others_end(babbler_server: ServerProcess) -> None:
    chunks = babbler_server.openai().chat.completions.create(
        **OPTIONS | {"max_tokens": 40}, n=2, stream=True, extra_body={"ignore_eos": True}
    )
    order = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.content]
    assert order != sorted(order)


@pytest.mark.parametrize("n_top", [0, 3])
def test_log_probabilities_are_the_same_streamed_and_not(
    babbler_server: ServerProcess, n_top: int
) -> None:
    options = {"logprobs": True, "top_logprobs": n_top, "extra_body": {"ignore_eos": True}}
    answer = whole(babbler_server, **options)
    (again,) = streamed(babbler_server, **options)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    assert again["logprobs"] == logprobs.content
    for entry in logprobs.content:
        assert entry.logprob <= 0
        told = [each.logprob for each in entry.top_logprobs]
        assert len(told) == n_top
        assert told == sorted(told, reverse=True)


def test_the_bytes_of_log_probabilities_are_those_of_the_text(
    parrot_server: ServerProcess,
) -> None:
    answer = whole(parrot_server, temperature=0, max_tokens=40, logprobs=True, top_logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    told = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert told.decode() == answer.choices[0].message.content == SAYING
    for entry in logprobs.content:
        (top,) = entry.top_logprobs
        assert (top.token, top.logprob) == (entry.token, entry.logprob)


def test_without_log_probabilities_there_are_none(parrot_server: ServerProcess) -> None:
    assert whole(parrot_server).choices[0].logprobs is None


def test_biases_and_stop_ids_steer_an_answer(parrot_server: ServerProcess) -> None:
    answer = whole(parrot_server, temperature=0, logprobs=True, top_logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].token == "A"
    with parrot_server.http() as http:
        body = {"messages": CHAT, "temperature": 0, "logit_bias": {"5": 100}, "max_tokens": 3}
        body |= {"ignore_eos": True, "stop_token_ids": []}
        biased = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert biased["usage"]["completion_tokens"] == 3
        body["stop_token_ids"] = [5]
        stopped = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert stopped["usage"]["completion_tokens"] == 1
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["matched_stop"] is None


def test_penalties_change_a_greedy_answer(babbler_server: ServerProcess) -> None:
    def ids(**options: Any) -> list[str]:
        answer = whole(
            babbler_server,
            temperature=0,
            max_tokens=60,
            logprobs=True,
            extra_body={"ignore_eos": True, **options},
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        return [entry.token for entry in logprobs.content or []]

    plain = ids()
    assert len(set(plain)) < len(plain)
    for penalty in ("frequency_penalty", "presence_penalty", "repetition_penalty"):
        assert len(set(ids(**{penalty: 2.0}))) > len(set(plain))


@pytest.mark.parametrize(
    ("stop", "matched"), [("👋", "👋"), ("<|im_end|>", "<|im_end|>"), ("zz", None)]
)
def test_the_stop_that_was_removed_is_told(
    parrot_server: ServerProcess, stop: str, matched: str | None
) -> None:
    body = {"messages": CHAT, "temperature": 0, "stop": [stop]}
    with parrot_server.http() as http:
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        lines = http.post("/v1/chat/completions", json={**body, "stream": True}).text.split("\n\n")
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", matched)
    assert choice["message"]["content"] == SAYING.partition(stop)[0]
    last = json.loads(lines[-3].removeprefix("data: "))
    assert last["choices"][0]["matched_stop"] == matched
