"""Answers of OpenAI-compatible servers, good and bad."""

from __future__ import annotations

import itertools
import socket

import pytest
from scripted_server import END, event, scripted_server, text_chunk

from astrai_cli.chat.conversation import Message
from astrai_cli.chat.remote import RemoteSource
from astrai_cli.chat.source import Ended
from astrai_cli.config import ChatConfig, SamplingConfig
from astrai_cli.engine.request import Usage
from astrai_cli.errors import InvalidInputError, ServerError

HELLO = [Message(role="user", content="hello")]


def ask(url: str, config: ChatConfig | None = None, **sampling: float) -> list[str | Ended]:
    source = RemoteSource(url, None, config or ChatConfig())
    try:
        return list(source.stream(HELLO, SamplingConfig.model_validate(sampling)))
    finally:
        source.close()


def test_text_comes_in_pieces_with_usage_at_the_end() -> None:
    with scripted_server(lambda body: ["Grüße ", "👋", END]) as server:
        assert ask(server.url) == ["Grüße ", "👋", Ended("stop", Usage(3, 2))]


def test_only_chosen_parameters_are_sent() -> None:
    with scripted_server(lambda body: [END]) as server:
        ask(server.url + "/v1/", temperature=0.5, seed=7)
        assert server.bodies == [
            {
                "model": "scripted",
                "messages": [{"role": "user", "content": "hello"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0.5,
                "seed": 7,
            }
        ]


def test_the_key_is_sent() -> None:
    with scripted_server(lambda body: [END]) as server:
        ask(server.url, ChatConfig.model_validate({"api_key": "hunter2"}))
        assert server.headers[0]["Authorization"] == "Bearer hunter2"


def test_comments_empty_lines_and_split_characters_are_no_trouble() -> None:
    raw = b": keepalive\r\n\r\n" + text_chunk("é").replace(b"\n", b"\r\n") + END
    with scripted_server(lambda body: [raw[i : i + 1] for i in range(len(raw))]) as server:
        assert ask(server.url) == ["é", Ended("stop", Usage(3, 2))]


def test_a_server_that_tells_no_usage_is_fine() -> None:
    with scripted_server(lambda body: ["x", b"data: [DONE]\n\n"]) as server:
        assert ask(server.url) == ["x", Ended("stop", None)]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (event({"error": {"message": "step\nfailed", "code": "x"}}), "step failed"),
        (event({"choices": [{"delta": {"content": 1}}]}), "sent a chunk that is not one"),
        (b"data: {\n\n", "sent a chunk that is not one"),
        (b"data: " + b"x" * (2**20 + 1), "a line of over 1048576 characters"),
    ],
)
def test_a_stream_that_fails_is_one_clear_error(raw: bytes, message: str) -> None:
    with scripted_server(lambda body: ["so far", raw]) as server:
        with pytest.raises(ServerError) as caught:
            ask(server.url)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model"}}', "400: no such model"),
        (b'{"detail": [{"loc": ["body"]}]}', "400: [{'loc': ['body']}]"),
        (b"<html>", "400: Bad Request"),
    ],
)
def test_a_refusal_is_one_clear_error(body: bytes, message: str) -> None:
    with scripted_server(lambda _: [body]) as server:
        source = RemoteSource(server.url, "m", ChatConfig())
        server.status = 400
        with pytest.raises(ServerError) as caught:
            list(source.stream(HELLO, SamplingConfig()))
        source.close()
        assert str(caught.value).endswith(message)


def test_a_refusal_for_want_of_a_key_names_the_option() -> None:
    with scripted_server(lambda _: [END]) as server:
        server.status = 401
        with pytest.raises(ServerError, match=r"401: .*--api-key or ASTRAI_API_KEY"):
            ask(server.url)


def test_nobody_listening_is_one_clear_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerError, match=url):
            ask(url)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://a:b"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="--url: "):
        ask(url)


def test_closing_the_stream_disconnects() -> None:
    with scripted_server(lambda body: itertools.repeat("more ")) as server:
        source = RemoteSource(server.url, None, ChatConfig())
        stream = source.stream(HELLO, SamplingConfig())
        assert next(stream) == "more "
        stream.close()
        assert server.gone.wait(30)
        source.close()
