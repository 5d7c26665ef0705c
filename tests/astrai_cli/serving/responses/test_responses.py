"""`/v1/responses`, by the official client, on a small trained model with tools and images."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from muse_fixtures import CHAT, CHAT_MODEL
from openai import BadRequestError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from server_process import ServerProcess

from astrai_cli.models.text import TextModel

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def function(name: str, required: list[str], **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "name": name, "parameters": parameters, "strict": False}


WEATHER = {**function("get_weather", ["city"], city="string", days="integer")}
TOOLS = [WEATHER, function("get_time", [])]
END = TextModel.read(CHAT_MODEL).special_tokens.eos[0]
ASK = "Weather in Paris, please."


@pytest.fixture(scope="module")
def client(muse_server: ServerProcess) -> OpenAI:
    return muse_server.openai()


def ask(client: OpenAI, content: Any, **options: Any) -> Any:
    given = {"model": "astrai", "temperature": 0, "max_output_tokens": 96, **options}
    return client.responses.create(input=content, **given)


def raw_events(muse_server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    body = {"temperature": 0, "max_output_tokens": 96, "stream": True, **fields}
    with muse_server.http() as http:
        text = http.post("/v1/responses", json=body).text
    events = [block.split("\n") for block in text.split("\n\n") if block]
    found = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [each["type"] for each in found]
    return found


def said(response: Any) -> list[tuple[Any, ...]]:
    """What there is in an output, but for ids."""
    items: list[tuple[Any, ...]] = []
    for item in response.output:
        if item.type == "function_call":
            items.append((item.type, item.status, item.name, json.loads(item.arguments)))
        else:
            items.append((item.type, item.status, [part.text for part in item.content]))
    return items


CASES: dict[str, dict[str, Any]] = {
    "words": {"input": "Say hello.", "reasoning": {"effort": "low"}},
    "reasoning": {"input": "Say hello.", "reasoning": {"effort": "high"}},
    "a call": {"input": ASK, "tools": TOOLS, "reasoning": {"effort": "high"}},
    "two calls": {
        "input": "Compare the weather in Accra and Tokyo.",
        "tools": [WEATHER],
        "reasoning": {"effort": "low"},
        "max_output_tokens": 160,
    },
    "cut off in a call": {"input": ASK, "tools": TOOLS, "max_output_tokens": 30},
    "cut off in words": {
        "input": "Say hello.",
        "max_output_tokens": 8,
        "reasoning": {"effort": "low"},
    },
    "cut off in reasoning": {
        "input": "Say hello.",
        "max_output_tokens": 9,
        "reasoning": {"effort": "high"},
    },
    "drawn": {"input": "Say hello.", "temperature": 0.8, "seed": 11},
    "ended at once": {"input": "Say hello.", "logit_bias": {str(END): 100}},
}


@pytest.mark.parametrize("name", CASES)
def test_events_add_up_to_the_whole_response(
    muse_server: ServerProcess, client: OpenAI, name: str
) -> None:
    case = dict(CASES[name])
    with muse_server.http() as http:
        options = {"temperature": 0, "max_output_tokens": 96, **case}
        answer = http.post("/v1/responses", json=options).raise_for_status().json()
    whole = Response.model_validate_json(json.dumps(answer), strict=True)
    events = raw_events(muse_server, **case)
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    ended = Response.model_validate_json(json.dumps(events[-1]["response"]), strict=True)
    assert said(ended) == said(whole)
    usage = {"input_tokens_details"}
    assert ended.usage is not None
    assert whole.usage is not None
    assert ended.usage.model_dump(exclude=usage) == whole.usage.model_dump(exclude=usage)
    same = ("status", "incomplete_details", "tools", "tool_choice", "temperature", "reasoning")
    assert [getattr(ended, key) for key in same] == [getattr(whole, key) for key in same]
    assert collected(events) == events[-1]["response"]["output"]


def collected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a reader of events alone sees them."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                assert event["item"]["status"] == "in_progress"
                items.append(event["item"])
            case "response.content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                part = items[event["output_index"]]["content"][event["content_index"]]
                part["text"] += event["delta"]
            case "response.output_text.done" | "response.reasoning_text.done":
                part = items[event["output_index"]]["content"][event["content_index"]]
                assert part["text"] == event["text"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "response.output_item.done":
                item = items[event["output_index"]]
                assert {**item, "status": event["item"]["status"]} == event["item"]
                items[event["output_index"]] = event["item"]
    return items


def test_the_kinds_of_ends(client: OpenAI) -> None:
    whole = ask(client, "Say hello.")
    assert (whole.status, whole.incomplete_details) == ("completed", None)
    assert whole.output_text
    cut = ask(client, "Say hello.", max_output_tokens=8, reasoning={"effort": "low"})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[-1].status == "incomplete"
    empty = ask(client, "Say hello.", extra_body=CASES["ended at once"])
    assert empty.output_text == ""


def test_what_was_asked_is_told_again(client: OpenAI) -> None:
    response = ask(
        client,
        "Say hello.",
        instructions="Be brief.",
        tools=TOOLS,
        tool_choice="none",
        metadata={"a": "b"},
        user="me",
        prompt_cache_key="key",
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        truncation="disabled",
    )
    assert response.instructions == "Be brief."
    assert response.tool_choice == "none"
    assert [tool.name for tool in response.tools] == ["get_weather", "get_time"]
    assert (response.metadata, response.user, response.prompt_cache_key) == (
        {"a": "b"},
        "me",
        "key",
    )
    assert response.store is False
    assert response.previous_response_id is None


@pytest.mark.parametrize("effort", ["low", "high"])
def test_a_loop_with_tools(client: OpenAI, effort: Any) -> None:
    """As agents do it: all output goes back with the results."""
    options: dict[str, Any] = {"tools": TOOLS, "reasoning": {"effort": effort}}
    history: list[Any] = [{"role": "user", "content": ASK}]
    first = ask(client, history, **options)
    call = first.output[-1]
    assert (call.type, call.name) == ("function_call", "get_weather")
    history += first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 8 degrees"}
    second = ask(client, [*history, result], **options)
    assert "sunny" in second.output_text
    chat = client.chat.completions.create(
        model="astrai",
        temperature=0,
        max_tokens=96,
        reasoning_effort=effort,
        messages=[
            {"role": "user", "content": ASK},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "".join(
                    part.text for item in first.output[:-1] for part in item.content
                ),
                "tool_calls": [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": "sunny, 8 degrees"},
        ],
        tools=[
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in TOOLS
        ],
    )
    assert chat.choices[0].message.content == second.output_text
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == second.usage.input_tokens


def test_a_session_goes_on_from_the_ids_of_its_answers(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "reasoning": {"effort": "high"},
        "extra_body": {"session_id": "responses"},
    }
    history: list[Any] = [{"role": "user", "content": "Say hello."}]
    first = ask(client, history, **options)
    history += [*first.output, {"role": "user", "content": "Say hello."}]
    second = ask(client, history, **options)
    used = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens == used - 1


def test_the_streaming_helper(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "astrai", "temperature": 0, "max_output_tokens": 96}
    with client.responses.stream(input=ASK, tools=TOOLS, **options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output[-1].type == "function_call"
    assert final.output[-1].name == "get_weather"
    with client.responses.stream(input="Say hello.", **options) as stream:
        text = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(text) == stream.get_final_response().output_text


def test_from_asyncio(muse_server: ServerProcess, client: OpenAI) -> None:
    alone = ask(client, "Say hello.")

    async def run() -> None:
        client = muse_server.async_openai()
        options: dict[str, Any] = {"model": "astrai", "temperature": 0, "max_output_tokens": 96}
        response = await client.responses.create(input="Say hello.", **options)
        assert said(response) == said(alone)
        async with client.responses.stream(input="Say hello.", **options) as stream:
            async for _ in stream:
                pass
            assert said(await stream.get_final_response()) == said(alone)

    asyncio.run(run())


def test_an_image(client: OpenAI) -> None:
    data = base64.b64encode((CHAT / "red.png").read_bytes()).decode()
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}
    text = {"type": "input_text", "text": "What colour is this image? "}
    message = {"role": "user", "content": [text, image]}
    response = ask(client, [message], reasoning={"effort": "low"})
    assert "red" in response.output_text


def test_an_error_in_the_middle_fails_the_response(
    muse_server: ServerProcess, client: OpenAI
) -> None:
    strict = {**function("get_weather", ["city", "unit"], city="string"), "strict": True}
    case = {"input": ASK, "tools": [strict], "reasoning": {"effort": "high"}}
    events = raw_events(muse_server, **case)
    assert events[-1]["type"] == "response.failed"
    failed = Response.model_validate_json(json.dumps(events[-1]["response"]), strict=True)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "server_error"
    assert "schema" in failed.error.message


TEXT = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include.0"),
        (
            {"include": ["message.output_text.logprobs"]},
            "unsupported_parameter",
            "include",
        ),
        ({"top_logprobs": 2}, "unsupported_parameter", "top_logprobs"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported_parameter", "text.format"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools.0"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input.0"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "unsupported_parameter",
            "input.0.content.0",
        ),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "input_image",
                                "image_url": "data:image/png;base64,AAAA",
                                "detail": "low",
                            }
                        ],
                    }
                ]
            },
            "unsupported_parameter",
            "input.0.content.0.detail",
        ),
        ({"input": [{"id": "msg_1"}]}, "unsupported_parameter", "input.0"),
        ({"input": []}, "invalid_value", "input"),
        (
            {"input": [TEXT, {"type": "function_call_output", "call_id": "x", "output": "y"}]},
            "invalid_value",
            "input",
        ),
        ({"input": "hi " * 2000}, "context_length_exceeded", "input"),
        ({"stream_options": {}}, "invalid_value", None),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(
    client: OpenAI, fields: dict[str, Any], code: str, param: str | None
) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, fields.get("input", "hi"), extra_body=fields)
    assert (caught.value.code, caught.value.param) == (code, param)
