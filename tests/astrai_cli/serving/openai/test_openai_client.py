"""The official client against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from parrot import SAYING
from server_process import ServerProcess, running_server

from astrai_cli.models.text import TextModel
from astrai_cli.serving.templates import ChatTemplate

GREETINGS = ["hello", "Grüße", "你好", "Привет", "مرحبا", "👋🌍", "a\nb", "<|im_end|>"]


def messages(text: str) -> list[Any]:
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}]


def count_tokens(model: Path, chat: list[Any]) -> int:
    text = TextModel.read(model)
    assert text.chat_template is not None
    return len(text.encode_prompt(ChatTemplate(text.chat_template).render(chat)))


def test_a_whole_answer_has_every_field_typed(parrot_server: ServerProcess, parrot: Path) -> None:
    chat = messages("Grüße 👋")
    answer = parrot_server.openai().chat.completions.create(
        model="parrot-llama-0", messages=chat, temperature=0, user="me", metadata={"a": "b"}
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "parrot-llama-0"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", SAYING)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == count_tokens(parrot, chat)
    said = TextModel.read(parrot).tokenizer.encode(SAYING).ids
    assert answer.usage.completion_tokens == len(said) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(said) + 1


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_is_role_text_finish_and_usage_where_asked(
    parrot_server: ServerProcess, include_usage: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(
        parrot_server.openai().chat.completions.create(
            model="astrai", messages=messages("hi"), temperature=0, stream=True, **options
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    usages = [chunk.usage for chunk in chunks]
    if include_usage:
        *chunks, last = chunks
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
        *usages, _ = usages
    assert not any(usages)
    first, *middle, end = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert all(choice.delta.role is None for choice in middle)
    # Characters of several bytes, and so of several tokens, arrive whole.
    assert [choice.delta.content for choice in middle] == list(SAYING)
    assert {choice.finish_reason for choice in (first, *middle)} == {None}
    assert end.finish_reason == "stop"
    assert end.delta.content is None


def test_the_raw_stream_is_what_the_reference_says(parrot_server: ServerProcess) -> None:
    body = {"messages": messages("hi"), "temperature": 0, "stream": True}
    with (
        parrot_server.http() as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-request-id"].startswith("req_")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert '"usage"' not in lines[0]


def test_stops_and_lengths_end_answers(parrot_server: ServerProcess) -> None:
    create = parrot_server.openai().chat.completions.create
    stopped = create(model="astrai", messages=messages("x"), temperature=0, stop=["👋", "zz"])
    assert stopped.choices[0].message.content == SAYING.partition("👋")[0]
    assert stopped.choices[0].finish_reason == "stop"
    short = create(model="astrai", messages=messages("x"), temperature=0, max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 3


def test_content_parts_and_our_own_answers_are_accepted(parrot_server: ServerProcess) -> None:
    client = parrot_server.openai()
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day"}]
    chat: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "me"},
    ]
    first = client.chat.completions.create(model="astrai", messages=chat, temperature=0)
    again = client.chat.completions.create(
        model="astrai",
        messages=[*chat, first.choices[0].message, {"role": "user", "content": "more"}],
        temperature=0,
    )
    assert again.choices[0].message.content == SAYING


def test_models_are_listed(parrot_server: ServerProcess) -> None:
    client = parrot_server.openai()
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("parrot-llama-0", "model", "astrai")
    assert client.models.retrieve("parrot-llama-0") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_hundred_mixed_requests_eight_at_once(
    babbler_server: ServerProcess, babbler: Path
) -> None:
    """Each equals what it gives alone; streamed and whole answers agree; usage is exact."""

    async def ask(client: AsyncOpenAI, number: int, stream: bool) -> tuple[str, int, int]:
        options: dict[str, Any] = {
            "model": "astrai",
            "messages": messages(GREETINGS[number % len(GREETINGS)]),
            "max_tokens": 3 + number % 20,
            "seed": number,
            "temperature": (number % 3) / 2,
        }
        if not stream:
            whole = await client.chat.completions.create(**options)
            assert whole.usage is not None
            return (
                whole.choices[0].message.content or "",
                whole.usage.prompt_tokens,
                whole.usage.completion_tokens,
            )
        text, usage = "", None
        async for chunk in await client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        assert usage is not None
        return text, usage.prompt_tokens, usage.completion_tokens

    async def run() -> None:
        client = babbler_server.async_openai()
        alone = [await ask(client, number, stream=False) for number in range(24)]
        gate = asyncio.Semaphore(8)

        async def gated(number: int) -> tuple[str, int, int]:
            async with gate:
                return await ask(client, number % 24, stream=number % 2 == 0)

        together = await asyncio.gather(*(gated(number) for number in range(100)))
        assert together == [alone[number % 24] for number in range(100)]
        for number, (_, prompt_tokens, completion_tokens) in enumerate(alone):
            chat = messages(GREETINGS[number % len(GREETINGS)])
            assert prompt_tokens == count_tokens(babbler, chat)
            assert 1 <= completion_tokens <= 3 + number % 20

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(babbler_server: ServerProcess, stream: bool) -> None:
    async def run() -> None:
        client = babbler_server.async_openai()
        request = client.chat.completions.create(
            model="astrai",
            messages=messages("go on"),
            stream=stream,
            extra_body={"ignore_eos": True},
        )
        task = asyncio.create_task(request)
        while not babbler_server.stats()["active"]:
            await asyncio.sleep(0.01)
        if stream:
            answer = await task
            await anext(answer)
            await answer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while (stats := babbler_server.stats())["active"]:
            await asyncio.sleep(0.01)
        assert stats["cells_used"] == 0

    before = babbler_server.stats()["requests_finished"]["cancelled"]
    asyncio.run(run())
    assert babbler_server.stats()["requests_finished"]["cancelled"] == before + 1


def test_a_real_model_answers_a_question(smollm2_gguf: Path) -> None:
    limits = {"max_context": 512, "threads": None}
    with running_server(smollm2_gguf, limits=limits) as server:
        answer = server.openai().chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=16,
            stream=True,
        )
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in answer)
