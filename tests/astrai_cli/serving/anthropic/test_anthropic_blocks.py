"""What the official client makes of a stream is the answer that is not streamed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from muse_fixtures import CHAT_MODEL
from parsing import tool

from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.request import Finish, FinishReason, GenerationRequest, Piece, Usage
from astrai_cli.models.text import TextModel
from astrai_cli.serving.anthropic.builder import AnthropicResponseBuilder
from astrai_cli.serving.builder import ResponseContext
from astrai_cli.serving.choice import Choice
from astrai_cli.serving.parsers import make_parser
from astrai_cli.serving.tool_schemas import ToolSet

TOKEN_BYTES = TokenBytes(TextModel.read(CHAT_MODEL).tokenizer)
TOOLS = ToolSet([tool("f", {"a": {"type": "string"}, "b": {"type": "number"}})])
PROMPT = Usage(prompt_tokens=50, completion_tokens=0, cached_tokens=32)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<>|"), min_size=1, max_size=12)
PASSAGES = st.lists(st.tuples(st.sampled_from(["self", "user"]), WORDS), max_size=5)
CALLS = st.lists(WORDS, max_size=2)


def answer_of(passages: list[tuple[str, str]], calls: list[str]) -> str:
    """An answer in Muse Glimmer's framing."""
    messages = [f" to={to}<|message|>{text}" for to, text in passages]
    messages += [
        f' to=f.f<|message|><atem:function_calls>\n<atem:invoke name="f.f">\n'
        f'<atem:parameter name="a">{text}</atem:parameter>\n'
        f'<atem:parameter name="b">0.5</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>"
        for text in calls
    ]
    return "<|eom|><|start|>assistant".join(messages) + "<|eot|>"


def context(*, shows_thinking: bool, max_tokens: int | None = 9) -> ResponseContext:
    return ResponseContext(
        id="msg_1",
        model="tiny",
        request=GenerationRequest(prompt=(1,), max_tokens=max_tokens),
        token_bytes=TOKEN_BYTES,
        make_parser=lambda: make_parser("atem", TOOLS),
        shows_reasoning=shows_thinking,
    )


def pieces_of(text: str, cuts: list[int]) -> list[Piece]:
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [Piece(text[start:end], ()) for start, end in pairwise(places)]


def served(body: str, media_type: str) -> Anthropic:
    """The official client of a server that answers with this body."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": media_type}, content=body.encode())

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return Anthropic(api_key="none", base_url="http://server", http_client=http, max_retries=0)


ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


def streamed(ctx: ResponseContext, pieces: list[Piece], finish: Finish) -> Message:
    builder, choice = AnthropicResponseBuilder(), new_choice(ctx)
    chunks = [builder.format_stream_start(ctx, PROMPT)]
    chunks += [builder.format_chunk(ctx, choice, choice.take(piece)) for piece in pieces]
    chunks.append(builder.format_choice_end(ctx, choice, choice.take(finish)))
    chunks.append(builder.format_stream_end(ctx, [choice]))
    with served("".join(chunks), "text/event-stream").messages.stream(**ASKED) as stream:
        return stream.get_final_message()


def whole(ctx: ResponseContext, text: str, finish: Finish) -> dict[str, Any]:
    builder, choice = AnthropicResponseBuilder(), new_choice(ctx)
    choice.take(Piece(text, ()))
    choice.take(finish)
    return builder.format_response(ctx, [choice])


def new_choice(ctx: ResponseContext) -> Choice:
    return Choice(0, ctx.make_parser(), None, shows_reasoning=ctx.shows_reasoning)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Calls are given new ids each time."""
    content = [{**block, "id": None} for block in message["content"]]
    return {**message, "content": content}


@settings(max_examples=150, deadline=None)
@given(PASSAGES, CALLS, st.lists(st.integers(0, 500), max_size=30), st.booleans())
def test_any_pieces_make_the_same_message(
    passages: list[tuple[str, str]], calls: list[str], cuts: list[int], shows_thinking: bool
) -> None:
    ctx = context(shows_thinking=shows_thinking)
    text = answer_of(passages, calls)
    finish = Finish("stop", Usage(50, 7, 32))
    message = streamed(ctx, pieces_of(text, cuts), finish)
    body = whole(ctx, text, finish)
    as_sent = message.to_dict(exclude_none=False)
    # The stream's helper adds a field of its own.
    content = [
        {key: value for key, value in block.items() if key != "parsed_output"}
        for block in as_sent.pop("content")
    ]
    assert without_ids({**as_sent, "content": content}) == without_ids(body)
    assert [block["type"] for block in content].count("tool_use") == len(calls)


@pytest.mark.parametrize(
    ("reason", "matched", "max_tokens", "expected"),
    [
        ("stop", None, 9, "end_turn"),
        ("stop", "zz", 9, "stop_sequence"),
        ("length", None, 9, "max_tokens"),
        ("length", None, None, "model_context_window_exceeded"),
    ],
)
def test_why_an_answer_ended(
    reason: FinishReason, matched: str | None, max_tokens: int | None, expected: str
) -> None:
    ctx = context(shows_thinking=True, max_tokens=max_tokens)
    finish = Finish(reason, Usage(50, 7), matched)
    message = streamed(ctx, [Piece(" to=user<|message|>hi", ())], finish)
    assert (message.stop_reason, message.stop_sequence) == (expected, matched)


def test_thinking_that_is_not_shown_comes_back() -> None:
    text = answer_of([("self", "hmm 東"), ("user", "hi"), ("self", "more")], [])
    finish = Finish("stop", Usage(50, 7))
    hidden = whole(context(shows_thinking=False), text, finish)["content"]
    assert [block.get("thinking") for block in hidden] == ["", None, ""]
    ctx, choice = context(shows_thinking=False), new_choice(context(shows_thinking=False))
    choice.take(Piece(text, ()))
    choice.take(finish)
    remembered = AnthropicResponseBuilder().message(ctx, choice)
    assert remembered.reasoning_content == "hmm 東\nmore"
