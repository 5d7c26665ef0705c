"""What OpenAI's three protocols share: types, equal answers however they come, clients' ways."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muse_fixtures import CHAT_MODEL, chat_cases
from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from server_process import ServerProcess, running_server

from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.request import Finish, GenerationRequest, Piece, Usage
from astrai_cli.loading import RunnableModel
from astrai_cli.models.text import TextModel
from astrai_cli.serving.builder import ResponseBuilder, ResponseContext
from astrai_cli.serving.choice import Choice
from astrai_cli.serving.openai.chat import OpenAIResponseBuilder
from astrai_cli.serving.openai.completions import CompletionResponseBuilder
from astrai_cli.serving.parsers import make_parser
from astrai_cli.serving.responses.builder import ResponsesBuilder
from astrai_cli.serving.responses.requests import ResponseRequest
from astrai_cli.serving.tool_schemas import ToolSet

QUESTION = "Tell me a story about the sea."
SAMPLING: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/v1/completions": {"prompt": "Once upon a time, in a", "max_tokens": 24, "logprobs": 2},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 24, "top_logprobs": 2},
}
WHOLE: dict[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": Response,
}
STREAMED: dict[str, TypeAdapter[Any]] = {
    "/v1/chat/completions": TypeAdapter(ChatCompletionChunk),
    "/v1/completions": TypeAdapter(Completion),
    "/v1/responses": TypeAdapter(ResponseStreamEvent),
}
# What the types have of services that this server has not.
ABSENT = {
    "/v1/chat/completions": {"metadata", "moderation"},
    "/v1/completions": set(),
    "/v1/responses": {
        *("access_programs", "conversation", "image", "input_transformations", "moderation"),
        *("prompt", "prompt_cache_diagnostics", "prompt_cache_options", "prompt_cache_retention"),
        "tool_usage",
    },
}


@pytest.fixture(scope="module")
def server(smollm2: RunnableModel) -> Iterator[ServerProcess]:
    limits = {"max_context": 512, "threads": None}
    with running_server(smollm2.source, smollm2.backend, limits=limits) as running:
        yield running


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(data) for data in re.findall(r"^data: (\{.*)$", text, re.MULTILINE)]


def joined(path: str, stream: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Text, tokens with log probabilities, how it ended, and usage, of a stream."""
    if path == "/v1/responses":
        deltas = [each for each in stream if each["type"] == "response.output_text.delta"]
        tokens = [entry for delta in deltas for entry in delta["logprobs"]]
        final = stream[-1]["response"]
        details = final["incomplete_details"]
        return "".join(each["delta"] for each in deltas), tokens, details, final["usage"]
    choices = [choice for chunk in stream for choice in chunk["choices"]]
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    if path == "/v1/completions":
        text = "".join(choice["text"] for choice in choices)
        tokens = [entry for each in told for entry in zip(*each.values(), strict=True)]
    else:
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        tokens = [entry for each in told for entry in each["content"]]
    return text, tokens, choices[-1]["finish_reason"], stream[-1]["usage"]


def whole(path: str, body: dict[str, Any]) -> tuple[Any, ...]:
    """The same of a whole answer."""
    if path == "/v1/responses":
        ((part,),) = (item["content"] for item in body["output"])
        return part["text"], part["logprobs"], body["incomplete_details"], body["usage"]
    (choice,) = body["choices"]
    told = choice["logprobs"]
    if path == "/v1/completions":
        tokens = [*zip(*told.values(), strict=True)]
        return choice["text"], tokens, choice["finish_reason"], body["usage"]
    return choice["message"]["content"], told["content"], choice["finish_reason"], body["usage"]


def without_cached(usage: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in usage.items() if key not in {"prompt_tokens_details"}} | {
        "input_tokens_details": None
    }


@pytest.mark.parametrize("path", BODIES)
def test_a_seeded_answer_is_the_same_streamed_and_has_the_official_types(
    server: ServerProcess, path: str
) -> None:
    options = {} if path == "/v1/responses" else {"stream_options": {"include_usage": True}}
    body = {**BODIES[path], **SAMPLING}
    with server.http() as http:
        answer = http.post(path, json=body).raise_for_status().json()
        text = http.post(path, json={**body, "stream": True, **options}).text
    WHOLE[path].model_validate_json(json.dumps(answer), strict=True)
    missing = WHOLE[path].model_fields.keys() - answer.keys()
    assert missing == ABSENT[path]
    stream = events(text)
    for event in stream:
        typed = json.dumps(event)
        if path == "/v1/completions":
            # The reference's chunks have a null there; the client has one type for both.
            typed = typed.replace('"finish_reason": null', '"finish_reason": "stop"')
        STREAMED[path].validate_json(typed, strict=True)
    said = joined(path, stream)
    expected = whole(path, answer)
    assert said[0] == expected[0] != ""
    assert said[2] == expected[2] is not None
    assert without_cached(said[3]) == without_cached(expected[3])
    assert [names(entry) for entry in said[1]] == [names(entry) for entry in expected[1]] != []


def names(entry: Any) -> Any:
    """What a token is called, and those beside it."""
    if isinstance(entry, tuple):
        return entry[0], entry[3], sorted(entry[2])
    return entry["token"], [each["token"] for each in entry["top_logprobs"]]


def test_a_model_is_of_the_official_type(server: ServerProcess) -> None:
    with server.http() as http:
        (model,) = http.get("/v1/models").json()["data"]
    Model.model_validate_json(json.dumps(model), strict=True)
    assert model["context_length"] == 512


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"temperature": 3}, openai.BadRequestError, "invalid_value"),
        ({"grammar": "x"}, openai.BadRequestError, "unsupported_parameter"),
        ({"temperature": "hot"}, openai.UnprocessableEntityError, "invalid_request"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_errors_are_what_clients_expect(
    server: ServerProcess,
    path: str,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    code: str,
) -> None:
    client = server.openai()
    for stream in (False, True):
        body = {**BODIES[path], **fields, "stream": stream}
        with pytest.raises(kind) as caught:
            client.post(path.removeprefix("/v1"), body=body, cast_to=object)
        error = ErrorObject.model_validate(caught.value.body)
        assert (error.code, error.type) == (code, "invalid_request_error")
        assert caught.value.request_id is not None
        assert caught.value.request_id.startswith("req_")


Ask = Callable[[Any], Any]
ENDLESS: dict[str, Ask] = {
    "chat": lambda client: client.chat.completions.create(
        model="astrai", messages=[{"role": "user", "content": QUESTION}], logit_bias={"2": -100}
    ),
    "completions": lambda client: client.completions.create(
        model="astrai", prompt=QUESTION, max_tokens=400, logit_bias={"2": -100}
    ),
    "responses": lambda client: client.responses.create(
        model="astrai", input=QUESTION, extra_body={"ignore_eos": True}
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_client_that_runs_out_of_patience_frees_its_place(
    server: ServerProcess, name: str
) -> None:
    before = server.stats()["requests_finished"]["cancelled"]
    with pytest.raises(openai.APITimeoutError):
        ENDLESS[name](server.openai().with_options(timeout=0.3))

    async def run() -> None:
        with pytest.raises(openai.APITimeoutError):
            await ENDLESS[name](server.async_openai().with_options(timeout=0.3))
        while server.stats()["active"]:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert server.stats()["requests_finished"]["cancelled"] == before + 2


TOKEN_BYTES = TokenBytes(TextModel.read(CHAT_MODEL).tokenizer)
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("get_weather", "get_time", "write_file", "search")
]


def chat_builder() -> OpenAIResponseBuilder:
    return OpenAIResponseBuilder("openrouter")


def completion_builder() -> CompletionResponseBuilder:
    builder = CompletionResponseBuilder()
    builder._echoes = [""]
    return builder


def responses_builder() -> ResponsesBuilder:
    builder = ResponsesBuilder()
    builder._request = ResponseRequest.model_validate({"input": "x"})
    return builder


def answer(
    make: Callable[[], ResponseBuilder[Any]], parser: str, pieces: list[str], reason: Any
) -> tuple[str, dict[str, Any]]:
    """An answer that comes in these pieces: its stream, and what it is as a whole."""
    builder = make()
    ctx = ResponseContext(
        id="x",
        model="m",
        request=GenerationRequest((1,), write_special=True),
        token_bytes=TOKEN_BYTES,
        make_parser=lambda: make_parser(parser, ToolSet(TOOLS)),
        include_usage=True,
        created=1,
    )
    choice = Choice(0, ctx.make_parser(), None)
    stream = builder.format_stream_start(ctx, Usage(1, 0))
    for piece in pieces:
        news = choice.take(Piece(piece, ()))
        stream += builder.format_chunk(ctx, choice, news)
    news = choice.take(Finish(reason, Usage(1, len("".join(pieces)))))
    stream += builder.format_choice_end(ctx, choice, news)
    return stream + builder.format_stream_end(ctx, [choice]), builder.format_response(ctx, [choice])


def anonymous(value: Any) -> Any:
    """A value without the ids that are drawn for each answer."""
    if isinstance(value, list):
        return [anonymous(each) for each in value]
    if isinstance(value, dict):
        drawn = {"id", "call_id", "completed_at"}
        return {key: anonymous(each) for key, each in value.items() if key not in drawn}
    return value


def chat_message(stream: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for chunk in stream:
        for choice in chunk["choices"]:
            for key, value in choice["delta"].items():
                message[key] = value if key == "role" else message.get(key, type(value)()) + value
    return message


def shown(stream: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """What a stream adds up to, and what it should."""
    found = events(stream)
    if body["object"] == "response":
        response = found[-1]["response"]
        deltas = [each["delta"] for each in found if each["type"].endswith("text.delta")]
        texts = [part["text"] for item in response["output"] for part in item.get("content", [])]
        assert "".join(deltas) == "".join(texts)
        return anonymous(response), anonymous(body)
    (choice,) = body["choices"]
    end = (found[-1]["choices"] or found[-2]["choices"])[0]["finish_reason"]
    assert (end, found[-1]["usage"]) == (choice["finish_reason"], body["usage"])
    if body["object"] == "text_completion":
        return "".join(each["choices"][0]["text"] for each in found[:-1]), choice["text"]
    message = {key: each for key, each in choice["message"].items() if each}
    calls = [{"index": index, **call} for index, call in enumerate(message.pop("tool_calls", []))]
    if calls:
        message["tool_calls"] = calls
    said = {key: each for key, each in chat_message(found).items() if each}
    return anonymous(said), anonymous(message)


@pytest.mark.parametrize(
    ("make", "parser"),
    [(chat_builder, "atem"), (completion_builder, "plain"), (responses_builder, "atem")],
    ids=["chat completions", "completions", "responses"],
)
@settings(deadline=None)
@given(data=st.data())
def test_an_answer_does_not_depend_on_how_it_arrives(
    make: Callable[[], ResponseBuilder[Any]], parser: str, data: st.DataObject
) -> None:
    case = data.draw(st.sampled_from(chat_cases()))
    text = case["greedy_text"]
    reason = data.draw(st.sampled_from(["stop", "length"]))
    if reason == "length":
        text = text[: data.draw(st.integers(0, len(text)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream, _ = answer(make, parser, pieces, reason)
    _, expected = answer(make, parser, [text], reason)
    said, whole_answer = shown(stream, expected)
    assert said == whole_answer
