"""`/v1/completions`, by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types import Completion
from server_process import ServerProcess, running_server

from astrai_cli.models.text import TextModel

TEXTS = ["Once upon a time", "The sea", "Zwölf Boxkämpfer"]
OPTIONS: dict[str, Any] = {"model": "astrai", "seed": 7, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(babbler: Path) -> Iterator[ServerProcess]:
    limits = {"max_context": 256, "max_inflight_requests": 6}
    with running_server(babbler, limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> OpenAI:
    return server.openai()


@pytest.fixture(scope="module")
def text(babbler: Path) -> TextModel:
    return TextModel.read(babbler)


def whole(client: OpenAI, prompt: Any, **options: Any) -> Completion:
    return client.completions.create(prompt=prompt, **{**OPTIONS, **options})


def texts(completion: Completion) -> list[str]:
    assert [choice.index for choice in completion.choices] == [*range(len(completion.choices))]
    return [choice.text for choice in completion.choices]


def streamed(client: OpenAI, prompt: Any, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """What the chunks of each choice add up to, and the usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in client.completions.create(
        prompt=prompt,
        stream=True,
        stream_options={"include_usage": True},
        **{**OPTIONS, **options},
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            so_far = choices.setdefault(choice.index, {"text": "", "logprobs": None})
            so_far["text"] += choice.text
            so_far["finish_reason"] = choice.finish_reason
            if choice.logprobs is not None:
                new = choice.logprobs.model_dump()
                old = so_far["logprobs"] or {}
                so_far["logprobs"] = {key: old.get(key, []) + new[key] for key in new}
    return [choices[index] for index in range(len(choices))], usage


def test_every_spelling_of_a_prompt_gives_what_it_gives_alone(
    client: OpenAI, text: TextModel
) -> None:
    alone = [texts(whole(client, each))[0] for each in TEXTS]
    ids = [text.encode_prompt(each) for each in TEXTS]
    assert len(set(alone)) == 3
    assert texts(whole(client, TEXTS)) == alone
    assert texts(whole(client, ids)) == alone
    assert texts(whole(client, ids[0])) == alone[:1]
    usage = whole(client, TEXTS).usage
    assert usage is not None
    assert usage.prompt_tokens == sum(map(len, ids))
    assert 3 <= usage.completion_tokens <= 72


def test_the_answers_to_each_prompt_stand_together(client: OpenAI) -> None:
    pairs = [texts(whole(client, each, n=2, best_of=2)) for each in TEXTS]
    assert texts(whole(client, TEXTS, n=2)) == [answer for pair in pairs for answer in pair]
    assert pairs[0][0] == texts(whole(client, TEXTS[0]))[0]
    assert pairs[0][0] != pairs[0][1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 2},
        {"logprobs": 3},
        {"echo": True},
        {"stop": ["e", "a"]},
        {"extra_body": {"ignore_eos": True}, "logprobs": 0},
    ],
    ids=str,
)
def test_streamed_and_whole_are_equal(client: OpenAI, options: dict[str, Any]) -> None:
    completion = whole(client, TEXTS, **options)
    choices, usage = streamed(client, TEXTS, **options)
    for choice, again in zip(completion.choices, choices, strict=True):
        assert again["text"] == choice.text
        assert again["finish_reason"] == choice.finish_reason
        assert (again["logprobs"] is None) == (choice.logprobs is None)
        if choice.logprobs is not None:
            told = choice.logprobs.model_dump()
            for key in ("tokens", "text_offset"):
                assert again["logprobs"][key] == told[key]
            # The same prompt may be in the cache by now, and its logits a rounding away.
            close = pytest.approx(told["token_logprobs"], abs=1e-4)
            assert again["logprobs"]["token_logprobs"] == close
            for new, old in zip(
                again["logprobs"]["top_logprobs"], told["top_logprobs"], strict=True
            ):
                assert new == pytest.approx(old, abs=1e-4)
    assert completion.usage is not None
    assert usage.model_dump(exclude={"prompt_tokens_details"}) == completion.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )


def test_log_probabilities_say_where_their_tokens_stand(client: OpenAI) -> None:
    options = {"logprobs": 2, "extra_body": {"ignore_eos": True}}
    (choice,) = whole(client, TEXTS[0], **options).choices
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    assert told.top_logprobs is not None
    assert told.token_logprobs is not None
    assert len(told.tokens) == 24
    assert told.text_offset == sorted(told.text_offset)
    for token, logprob, top, offset in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset, strict=True
    ):
        assert top[token] == logprob <= 0
        assert 2 <= len(top) <= 3
        named = token.startswith(("bytes:", "<|"))
        assert named or choice.text.startswith(token, offset)


def test_the_prompt_is_told_again_with_echo(client: OpenAI, text: TextModel) -> None:
    answer = texts(whole(client, TEXTS[2]))[0]
    assert texts(whole(client, TEXTS[2], echo=True)) == [TEXTS[2] + answer]
    ids = text.encode_prompt(TEXTS[2])
    assert texts(whole(client, ids, echo=True))[0].endswith(TEXTS[2] + answer)


def test_an_answer_has_sixteen_tokens_unless_asked_otherwise(client: OpenAI) -> None:
    options = {"model": "astrai", "extra_body": {"ignore_eos": True}}
    completion = client.completions.create(prompt="x", **options)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "code", "param"),
    [
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_parameter", None),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", None),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"prompt": ["x"] * 7}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 4, "n": 2}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 1025}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": [-1], "echo": True}, "invalid_value", "prompt.0.0"),
        ({"prompt": [10**9], "echo": True}, "invalid_value", "prompt"),
        ({"prompt": "x " * 400}, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 10**6}, "context_length_exceeded", "prompt"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"n": 9}, "invalid_value", "n"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(
    client: OpenAI, options: dict[str, Any], code: str, param: str | None
) -> None:
    with pytest.raises(BadRequestError) as caught:
        whole(client, **{"prompt": "x", **options})
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("prompt", [None, 7, [1.5], [True], [["x"]], {"a": 1}], ids=str)
def test_prompts_of_a_wrong_shape(server: ServerProcess, prompt: Any) -> None:
    with server.http() as http:
        status = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code
    # A null is a prompt left out, which a model without a token to begin with cannot continue.
    assert status == (400 if prompt is None else 422)


def test_a_session_goes_on_from_its_ids(
    server: ServerProcess, client: OpenAI, text: TextModel
) -> None:
    options = {"extra_body": {"session_id": "raw"}, "temperature": 0}
    first = whole(client, TEXTS[0], **options)
    assert first.usage is not None
    longer = text.encode_prompt(TEXTS[0] + texts(first)[0] + " and")
    second = whole(client, longer, **options)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens == len(longer)
    with server.http() as http:
        assert http.delete("/v1/sessions/raw").status_code == 200
    assert texts(second) == texts(whole(client, longer, temperature=0))


def test_many_at_once_from_asyncio(server: ServerProcess, client: OpenAI) -> None:
    alone = [texts(whole(client, each))[0] for each in TEXTS]

    async def run() -> list[str]:
        client = server.async_openai()
        answers = await asyncio.gather(
            *(client.completions.create(prompt=each, **OPTIONS) for each in TEXTS * 2)
        )
        return [answer.choices[0].text for answer in answers]

    assert asyncio.run(run()) == alone * 2
