"""Anthropic's official client against real servers."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from anthropic.types import Message
from muse_fixtures import CHAT
from parrot import SAYING
from server_process import ServerProcess, running_server

from astrai_cli.loading import RunnableModel

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
LONG = "Weather in Paris? " * 110
ASKED: list[Any] = [{"role": "user", "content": "Weather in Paris, please."}]


@pytest.fixture(scope="module")
def client(muse_server: ServerProcess) -> Anthropic:
    return muse_server.anthropic()


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    """What the client takes by name, and the rest as it is sent."""
    extra = {"temperature": 0, **options.pop("extra_body", {})}
    return {"model": "astrai", "max_tokens": 96, "extra_body": extra, **options}


def ask(client: Anthropic, messages: list[Any], **options: Any) -> Message:
    message: Message = client.messages.create(messages=messages, **options_of(options))
    return message


def streamed(client: Anthropic, messages: list[Any], **options: Any) -> Message:
    with client.messages.stream(messages=messages, **options_of(options)) as stream:
        return stream.get_final_message()


def comparable(message: Message) -> dict[str, Any]:
    """Without what is another each time: ids, and which tokens of the prompt were cached."""
    body = message.to_dict(exclude_none=False)
    usage: Any = body["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    blocks: Any = body["content"]
    for block in blocks:
        block.pop("parsed_output", None)
        block.pop("id", None)
    return {**body, "id": None}


def kinds(message: Message) -> list[str]:
    return [block.type for block in message.content]


def result(message: Message, text: str, **fields: Any) -> dict[str, Any]:
    """What all calls of a message came to."""
    blocks = [
        {"type": "tool_result", "tool_use_id": block.id, "content": text, **fields}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": blocks}


@pytest.mark.parametrize(
    "options",
    [
        {"output_config": {"effort": "high"}},
        {"output_config": {"effort": "low"}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"extra_body": {"temperature": 0.8, "seed": 3}},
        {"extra_body": {"temperature": 1.2, "seed": 5, "top_k": 20}},
        {"stop_sequences": ["Bergen"]},
        {"max_tokens": 12},
        {"tools": []},
    ],
    ids=str,
)
def test_streamed_and_whole_answers_are_equal(client: Anthropic, options: dict[str, Any]) -> None:
    given = {"tools": [WEATHER], **options}
    assert comparable(streamed(client, ASKED, **given)) == comparable(ask(client, ASKED, **given))


def test_a_tool_is_called_and_answered(client: Anthropic) -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "output_config": {"effort": "high"}}
    first = ask(client, ASKED, **options)
    assert (first.stop_reason, kinds(first)) == ("tool_use", ["thinking", "tool_use"])
    call = first.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Bergen"})
    chat = [*ASKED, first.to_param(), result(first, "sunny, 8 degrees")]
    second = ask(client, chat, **options)
    assert second.stop_reason == "end_turn"
    assert kinds(second)[-1] == "text"
    details = second.usage.output_tokens_details
    assert details is not None
    assert 0 < details.thinking_tokens < second.usage.output_tokens


def test_events_come_in_their_order(client: Anthropic) -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "output_config": {"effort": "high"}}
    with client.messages.create(messages=ASKED, stream=True, **options_of(options)) as events:
        seen = [
            (event.type, getattr(event, "index", None), getattr(event, "delta", None))
            for event in events
        ]
    steps = [
        f"{kind} {delta.type}" if kind == "content_block_delta" else kind for kind, _, delta in seen
    ]
    assert list(dict.fromkeys(steps)) == [
        "message_start",
        "content_block_start",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop",
        "content_block_delta input_json_delta",
        "message_delta",
        "message_stop",
    ]
    indices = [index for _, index, _ in seen if index is not None]
    assert indices == sorted(indices)
    assert set(indices) == {0, 1}


def test_the_raw_stream_is_what_the_reference_says(muse_server: ServerProcess) -> None:
    body = {"messages": ASKED, "temperature": 0, "stream": True, "max_tokens": 8}
    with (
        muse_server.http() as http,
        http.stream("POST", "/v1/messages?beta=true", json=body) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["request-id"] == response.headers["x-request-id"]
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    data = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [each["type"] for each in data]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert data[0]["message"]["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"tools": [WEATHER], "output_config": {"effort": "low"}},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"messages": "image"},
    ],
    ids=str,
)
def test_counts_are_those_of_the_answer(client: Anthropic, options: dict[str, Any]) -> None:
    given = {"messages": ASKED, **options}
    if given["messages"] == "image":
        given["messages"] = about("green.png")
    counted = client.messages.count_tokens(model="astrai", **given).input_tokens
    usage = ask(client, given.pop("messages"), **given).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_counts_go_beyond_the_context(client: Anthropic) -> None:
    chat: list[Any] = [{"role": "user", "content": LONG + LONG}]
    counted = client.messages.count_tokens(model="astrai", messages=chat).input_tokens
    assert counted > 1024
    with pytest.raises(anthropic.BadRequestError, match=f"too long: {counted} tokens > 1023"):
        ask(client, chat)


def about(name: str) -> list[Any]:
    data = base64.b64encode((CHAT / name).read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    question = {"type": "text", "text": "What colour is this image? "}
    return [{"role": "user", "content": [question, {"type": "image", "source": source}]}]


def test_colours_are_named(client: Anthropic) -> None:
    options: dict[str, Any] = {"output_config": {"effort": "low"}}
    answers = {name: ask(client, about(f"{name}.png"), **options) for name in ("blue", "red")}
    for name, answer in answers.items():
        (block,) = answer.content
        assert block.type == "text"
        assert name in block.text
    assert comparable(streamed(client, about("red.png"), **options)) == comparable(answers["red"])


def test_a_context_that_ends_says_so(client: Anthropic) -> None:
    options: dict[str, Any] = {"max_tokens": 5000, "extra_body": {"ignore_eos": True}}
    message = ask(client, [{"role": "user", "content": LONG}], **options)
    assert message.stop_reason == "model_context_window_exceeded"
    usage = message.usage
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens
    assert total == 1024


def test_a_session_goes_on_from_its_very_ids(client: Anthropic) -> None:
    options: dict[str, Any] = {
        "tools": [WEATHER],
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "extra_body": {"session_id": "about the weather"},
    }
    first = ask(client, ASKED, **dict(options))
    chat = [*ASKED, first.to_param(), result(first, "sunny, 8 degrees")]
    second = ask(client, chat, **dict(options))
    n_first = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    # All but the last token that was generated, which nothing had run yet.
    assert second.usage.cache_read_input_tokens == n_first + first.usage.output_tokens - 1


def test_what_claude_code_sends(client: Anthropic) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    tools = [
        {**WEATHER, "name": f"mcp__server__tool_{number}", "eager_input_streaming": True}
        for number in range(4)
    ]
    with client.beta.messages.stream(
        model="astrai",
        max_tokens=64000,
        betas=["claude-code-20250219", "context-management-2025-06-27"],
        system=[
            {"type": "text", "text": "You are an agent."},
            {"type": "text", "text": "Use tools.", **cached},
        ],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Hi</system-reminder>"},
                    {"type": "text", "text": "Say hello.", **cached},
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "Plan first.", **cached}]},
        ],
        tools=[*tools, {**WEATHER, **cached}],
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "xhigh"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": '{"session_id": "1"}'},
        stop_sequences=["</never>"],
        extra_body={"temperature": 1, "seed": 1},
    ) as stream:
        message = stream.get_final_message()
    assert message.content
    assert message.usage.service_tier == "standard"


ERRORS: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
    (anthropic.BadRequestError, "unsupported_parameter", {"thinking": {"type": "disabled"}}),
    (anthropic.BadRequestError, "unsupported_parameter", {"container": "box"}),
    (anthropic.BadRequestError, "invalid_value", {"extra_body": {"temperature": 9}}),
    (anthropic.NotFoundError, "model_not_found", {"model": "claude-opus-5"}),
    (anthropic.UnprocessableEntityError, "invalid_request", {"system": 5}),
    (
        anthropic.BadRequestError,
        "invalid_tool_schema",
        {"tools": [{"name": "f", "input_schema": {"type": "nothing"}}]},
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "code", "options"), ERRORS, ids=str)
def test_errors(
    client: Anthropic,
    kind: type[anthropic.APIStatusError],
    code: str,
    options: dict[str, Any],
    stream: bool,
) -> None:
    with pytest.raises(kind) as caught:
        client.messages.create(messages=ASKED, stream=stream, **options_of(dict(options)))
    body: Any = caught.value.body
    assert (body["type"], body["error"]["code"]) == ("error", code)
    assert body["error"]["type"] in {"invalid_request_error", "not_found_error"}
    assert body["request_id"] == caught.value.request_id
    assert ("detail" in body) == (caught.value.status_code == 422)


def test_calls_against_the_schema_fail_the_answer(client: Anthropic) -> None:
    schema = {**WEATHER["input_schema"], "required": ["city", "unit"]}
    options: dict[str, Any] = {
        "tools": [{**WEATHER, "input_schema": schema}],
        "output_config": {"effort": "low"},
    }
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client, ASKED, **options)
    assert caught.value.status_code == 502
    with pytest.raises(anthropic.APIStatusError, match="do not match its schema") as caught:
        streamed(client, ASKED, **options)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "api_error")


def test_the_tool_runner_goes_on_without_threads(client: Anthropic) -> None:
    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city"""
        asked.append(city)
        return "sunny, 8 degrees"

    runner = client.beta.messages.tool_runner(
        model="astrai",
        max_tokens=96,
        messages=[{"role": "user", "content": "Weather in Paris, please."}],
        tools=[get_weather],
        output_config={"effort": "low"},
        extra_body={"temperature": 0},
    )
    assert runner.until_done().stop_reason == "end_turn"
    assert len(asked) == 1


def test_the_model_is_listed(client: Anthropic) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id) == model
    assert (model.type, model.max_input_tokens, model.lifecycle) == ("model", 1024, "active")
    assert model.created_at.tzinfo is not None


def test_a_client_that_waits_too_long_gives_up(muse_server: ServerProcess) -> None:
    with pytest.raises(anthropic.APITimeoutError):
        ask(muse_server.anthropic(timeout=0.05), ASKED, extra_body={"ignore_eos": True})


def test_text_of_a_model_without_tools(parrot_server: ServerProcess) -> None:
    async def run(client: AsyncAnthropic) -> tuple[Message, Message]:
        chat: list[Any] = [{"role": "user", "content": "Grüße 👋"}]
        options = options_of({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}})
        whole = await client.messages.create(messages=chat, **options)
        async with client.messages.stream(messages=chat, **options) as stream:
            texts = [text async for text in stream.text_stream]
            assert texts == list(SAYING)
            return whole, await stream.get_final_message()

    whole, built = asyncio.run(run(parrot_server.async_anthropic()))
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": SAYING}]
    assert (whole.stop_reason, whole.model) == ("end_turn", "parrot-llama-0")
    assert comparable(whole) == comparable(built)


def test_stop_sequences_are_told(parrot_server: ServerProcess) -> None:
    client = parrot_server.anthropic()
    stopped = ask(client, ASKED, stop_sequences=["zz", "👋"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "👋")
    (block,) = stopped.content
    assert block.type == "text"
    assert block.text == SAYING.partition("👋")[0]
    short = ask(client, ASKED, max_tokens=3)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)


def test_a_real_model_answers_many_at_once(smollm2: RunnableModel) -> None:
    """Each as it does alone, streamed or whole."""

    async def one(client: AsyncAnthropic, number: int, stream: bool) -> dict[str, Any]:
        options = options_of({"max_tokens": 12, "extra_body": {"temperature": 1, "seed": number}})
        chat: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
        if not stream:
            return comparable(await client.messages.create(messages=chat, **options))
        async with client.messages.stream(messages=chat, **options) as built:
            return comparable(await built.get_final_message())

    async def run(client: AsyncAnthropic) -> None:
        alone = [await one(client, number, stream=False) for number in range(4)]
        together = await asyncio.gather(
            *(one(client, number % 4, number > 3) for number in range(8))
        )
        assert together == alone * 2

    limits = {"max_context": 512, "threads": None}
    with running_server(smollm2.source, smollm2.backend, limits=limits) as server:
        asyncio.run(run(server.async_anthropic()))
