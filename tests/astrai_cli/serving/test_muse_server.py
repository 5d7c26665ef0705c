"""A small trained Muse Glimmer behind the real server, by the official client.

It has learnt the protocol and little of the world: what it says is often wrong, and
always the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muse_fixtures import CHAT, CHAT_MODEL, chat_cases, image_cases
from openai import APIStatusError, BadRequestError, OpenAI
from server_process import ServerProcess, running_server

from astrai_cli.models.text import TextModel
from astrai_cli.serving.parsers import ParsedOutput, parse_output


def function(name: str, description: str, required: list[str], **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": required}
    named = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": named}


WEATHER = function("get_weather", "Weather of a city", ["city"], city="string", days="integer")
TIME = function("get_time", "The time now", [])
FILE = function("write_file", "Write a file", ["path", "content"], path="string", content="string")
SEARCH = function("search", "Search the web", ["query"], query="string")
TOOLS = [WEATHER, TIME, FILE, SEARCH]


@pytest.fixture(scope="module")
def client(muse_server: ServerProcess) -> OpenAI:
    return muse_server.openai()


@pytest.fixture(scope="module")
def verbatim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A server whose prompts are the first message as it stands."""
    template = tmp_path_factory.mktemp("verbatim") / "template.jinja"
    template.write_text("{# tools #}{{ messages[0].content }}")
    limits = {"max_context": 1024}
    with running_server(
        CHAT_MODEL, tool_parser="atem", chat_template=str(template), limits=limits
    ) as running:
        yield running.openai()


def ask(client: OpenAI, messages: list[Any], **options: Any) -> Any:
    given = {"model": "astrai", "temperature": 0, "max_tokens": 96, **options}
    return client.chat.completions.create(messages=messages, **given)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(call: Any, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def reasoning_of(message: Any) -> str | None:
    return getattr(message, "reasoning_content", None)


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ]


def streamed(client: OpenAI, messages: list[Any], **options: Any) -> tuple[Any, ...]:
    """What the deltas of an answer add up to: reasoning, content, calls, finish reason."""
    reasoning, content, calls, reason = "", "", [], None
    for chunk in ask(client, messages, stream=True, **options):
        for choice in chunk.choices:
            reasoning += reasoning_of(choice.delta) or ""
            content += choice.delta.content or ""
            calls += calls_of(choice.delta)
            reason = reason or choice.finish_reason
    return reasoning, content, calls, reason


def whole(client: OpenAI, messages: list[Any], **options: Any) -> tuple[Any, ...]:
    choice = ask(client, messages, **options).choices[0]
    message = choice.message
    parts = (reasoning_of(message) or "", message.content or "", calls_of(message))
    return (*parts, choice.finish_reason)


def expected(case: dict[str, Any]) -> tuple[Any, ...]:
    parsed: ParsedOutput = parse_output("atem", case["greedy_text"], TOOLS)
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return parsed.reasoning or "", parsed.content, calls, parsed.finish_reason


@pytest.mark.parametrize("case", chat_cases(), ids=lambda case: case["prompt"][-60:-25])
def test_reference_answers_token_for_token(verbatim: OpenAI, case: dict[str, Any]) -> None:
    prompt = [user(case["prompt"])]
    answer = ask(verbatim, prompt, tools=TOOLS, logprobs=True)
    assert answer.usage.prompt_tokens == len(case["prompt_ids"])
    assert answer.usage.completion_tokens == len(case["greedy_ids"])
    tokenizer = TextModel.read(CHAT_MODEL).tokenizer
    *said, _end = case["greedy_ids"]
    assert [each.token for each in answer.choices[0].logprobs.content] == [
        tokenizer.decode([token_id], skip_special_tokens=False) for token_id in said
    ]
    assert whole(verbatim, prompt, tools=TOOLS) == expected(case)
    assert streamed(verbatim, prompt, tools=TOOLS) == expected(case)


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_a_tool_is_called_and_answered(client: OpenAI, effort: str) -> None:
    chat: list[Any] = [user("Weather in Paris, please.")]
    options = {"tools": TOOLS, "reasoning_effort": effort}
    first = ask(client, chat, **options).choices[0]
    assert first.finish_reason == "tool_calls"
    assert calls_of(first.message) == [("get_weather", {"city": "Bergen"})]
    assert bool(reasoning_of(first.message)) == (effort != "low")
    assert streamed(client, chat, **options) == whole(client, chat, **options)

    chat += [first.message, result(first.message.tool_calls[0], "sunny, 8 degrees")]
    second = ask(client, chat, **options).choices[0]
    assert second.finish_reason == "stop"
    assert "sunny" in second.message.content
    chat += [second.message, user("What time is it?")]
    third = ask(client, chat, **options).choices[0]
    assert calls_of(third.message) == [("get_time", {})]
    chat += [third.message, result(third.message.tool_calls[0], "12:30")]
    assert ask(client, chat, **options).choices[0].finish_reason == "stop"


def test_two_calls_for_a_comparison(client: OpenAI) -> None:
    chat: list[Any] = [user("Compare the weather in Accra and Tokyo.")]
    options = {"tools": [WEATHER], "reasoning_effort": "low", "max_tokens": 160}
    message = ask(client, chat, **options).choices[0].message
    assert [name for name, _ in calls_of(message)] == ["get_weather", "get_weather"]
    ids = [call.id for call in message.tool_calls]
    assert len(set(ids)) == 2
    chat.append(message)
    chat += [result(call, "rain, 3 degrees") for call in message.tool_calls]
    assert ask(client, chat, **options).choices[0].message.content


def test_no_tools_no_calls(client: OpenAI) -> None:
    chat = [user("Weather in Paris, please.")]
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = ask(client, chat, reasoning_effort="low", **options).choices[0]
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content


def test_reasoning_is_shown_hidden_and_counted(client: OpenAI) -> None:
    chat = [user("Say hello.")]
    shown = ask(client, chat, reasoning_effort="high")
    assert reasoning_of(shown.choices[0].message)
    n_reasoning = shown.usage.completion_tokens_details.reasoning_tokens
    assert 0 < n_reasoning < shown.usage.completion_tokens
    for body in (
        {"include_reasoning": False},
        {"reasoning": {"exclude": True}},
        {"reasoning": {"exclude": True, "effort": "high"}},
    ):
        hidden = ask(client, chat, reasoning_effort="high", extra_body=body)
        assert hidden.choices[0].message.content == shown.choices[0].message.content
        assert reasoning_of(hidden.choices[0].message) is None
        assert hidden.usage.completion_tokens_details.reasoning_tokens == n_reasoning
    body = {"include_reasoning": False}
    hidden = ask(client, chat, reasoning_effort="high", extra_body=body, logprobs=True)
    tokens = "".join(each.token for each in hidden.choices[0].logprobs.content)
    assert hidden.choices[0].message.content in tokens
    assert "easy" not in tokens
    brief = ask(client, chat, reasoning_effort="low")
    assert brief.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    "options",
    [
        {"stop": ["never said"]},
        {"n": 2},
        {"seed": 5, "temperature": 0.7},
    ],
    ids=str,
)
def test_a_count_does_not_depend_on_how_text_arrives(
    client: OpenAI, options: dict[str, Any]
) -> None:
    answer = ask(client, [user("Say hello.")], reasoning_effort="high", **options)
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    assert counted > 0
    assert counted % options.get("n", 1) == 0


@pytest.mark.parametrize("options", [{"stop": ["help"]}, {"extra_body": {"ignore_eos": True}}])
def test_counts_that_cannot_be_exact_are_left_out(client: OpenAI, options: dict[str, Any]) -> None:
    answer = ask(client, [user("Say hello.")], max_tokens=48, reasoning_effort="high", **options)
    assert answer.usage.completion_tokens_details is None


def test_a_call_cut_off_is_none(client: OpenAI) -> None:
    chat = [user("Weather in Paris, please.")]
    cut = ask(client, chat, tools=TOOLS, reasoning_effort="low", max_tokens=20).choices[0]
    assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
    stopped = ask(client, chat, tools=TOOLS, reasoning_effort="low", stop=["Bergen"]).choices[0]
    assert (stopped.finish_reason, stopped.message.tool_calls) == ("stop", None)
    assert stopped.matched_stop == "Bergen"


@pytest.mark.parametrize("stop", ["to", "user", "self", "=", "message"])
def test_stops_do_not_cut_headers(client: OpenAI, stop: str) -> None:
    chat = [user("Say hello.")]
    for effort in ("low", "high"):
        free = ask(client, chat, reasoning_effort=effort).choices[0].message
        stopped = ask(client, chat, reasoning_effort=effort, stop=[stop]).choices[0]
        reasoning, cut, _ = (reasoning_of(free) or "").partition(stop)
        assert (reasoning_of(stopped.message) or "") == reasoning
        said = "" if cut else free.content.partition(stop)[0]
        assert stopped.message.content == said


def test_calls_against_the_schema_fail_the_answer(client: OpenAI) -> None:
    strict = function("get_weather", "Weather of a city", ["city", "unit"], city="string")
    strict["function"]["strict"] = True
    chat = [user("Weather in Paris, please.")]
    with pytest.raises(APIStatusError) as caught:
        ask(client, chat, tools=[strict], reasoning_effort="low")
    assert (caught.value.status_code, caught.value.code) == (502, "invalid_tool_output")
    with pytest.raises(Exception, match="do not match its schema"):
        streamed(client, chat, tools=[strict], reasoning_effort="low")


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"type": "object", "properties": {"a": {"required": True}}}, "invalid_tool_schema"),
        ({"$ref": "https://schemas.example/a.json"}, "invalid_tool_schema"),
    ],
)
def test_schemas_are_refused_before_anything_is_generated(
    client: OpenAI, parameters: dict[str, Any], code: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(BadRequestError) as caught:
        ask(client, [user("hi")], tools=[WEATHER, tool])
    assert caught.value.code == code
    assert ask(client, [user("hi")], tools=[WEATHER, tool], tool_choice="none").choices


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
        {"include_reasoning": True, "reasoning": {"exclude": True}},
        {"include_reasoning": False, "reasoning": {"exclude": False}},
        {"reasoning_effort": "minimal"},
    ],
    ids=str,
)
def test_contradictions_are_refused(client: OpenAI, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, [user("hi")], extra_body=body)
    assert caught.value.code == "invalid_value"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "tool_call_id": "call_1", "content": "x"}, "messages.1.tool_call_id"),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
                ],
            },
            "messages.1.tool_calls",
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a": "\\ud800"}'},
                    }
                ],
            },
            "messages.1.tool_calls",
        ),
    ],
)
def test_histories_that_make_no_sense(client: OpenAI, message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, [user("hi"), message])
    assert caught.value.param == param


def image_of(name: str) -> dict[str, Any]:
    data = base64.b64encode((CHAT / name).read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def about(name: str, text: str = "What colour is this image? ") -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text}, image_of(name)]}]


COLOURS = {case["image"]: case["greedy_text"] for case in image_cases()}


@pytest.mark.parametrize("name", ["blue.png", "red.png", "purple.png", "white.png"])
def test_colours_are_named(client: OpenAI, name: str) -> None:
    """As the reference names them, whose prompts are other words around the image."""
    said = whole(client, about(name), reasoning_effort="low")
    assert said[1] in COLOURS[name]
    assert streamed(client, about(name), reasoning_effort="low") == said


def test_a_conversation_about_an_image_encodes_it_once(
    client: OpenAI, muse_server: ServerProcess
) -> None:
    chat = about("green.png", "Name the colour of ")
    options = {"reasoning_effort": "low", "extra_body": {"session_id": "about green"}}
    before = muse_server.stats()["images_encoded"]
    first = ask(client, chat, **options)
    chat += [first.choices[0].message, user("Say hello.")]
    second = ask(client, chat, **options)
    assert muse_server.stats()["images_encoded"] == before + 1
    n_first = first.usage.prompt_tokens + first.usage.completion_tokens
    # All but the last token that was generated, which nothing had run yet.
    assert second.usage.prompt_tokens_details.cached_tokens == n_first - 1
    alone = ask(client, chat, reasoning_effort="low")
    assert alone.choices[0].message == second.choices[0].message
    assert muse_server.stats()["images_encoded"] == before + 1


def test_a_placeholder_that_somebody_wrote_is_no_image(client: OpenAI) -> None:
    chat = about("red.png", "What colour is this <|patch|>? ")
    assert ask(client, chat).choices
    options = {"extra_body": {"session_id": "patches"}, "max_tokens": 4}
    chat = about("red.png")
    babble = ask(client, chat, logit_bias={"1020": 100}, **options).choices[0].message
    chat += [babble, user("Say hello.")]
    assert ask(client, chat, **options).choices


@pytest.mark.parametrize(
    "messages",
    [
        about("red.png") + about("blue.png"),
        [{"role": "user", "content": [image_of("red.png"), image_of("red.png")]}],
        [{"role": "system", "content": [image_of("red.png")]}],
        about("red.png", "<|image_start|><|patch|><|image_end|>"),
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
                ],
            }
        ],
    ],
    ids=["two", "two in one", "the system's", "a placeholder spelt out", "no base64", "no PNG"],
)
def test_images_that_are_refused(client: OpenAI, messages: list[Any]) -> None:
    with pytest.raises(BadRequestError):
        ask(client, messages)


def test_a_template_that_is_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="cannot be read as a chat template"),
        running_server(CHAT_MODEL, chat_template=str(tmp_path / "none.jinja")),
    ):
        pass
