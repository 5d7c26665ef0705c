"""Anthropic's blocks as the messages that all chat protocols come down to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.anthropic.messages import chat_messages
from astrai_cli.serving.anthropic.requests import ConversationBody
from astrai_cli.serving.anthropic.signatures import sign, thinking_of
from astrai_cli.serving.errors import RequestError
from astrai_cli.serving.messages import ChatMessage

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
TEXTS = st.text(max_size=20)


def body(*messages: dict[str, Any], **fields: Any) -> ConversationBody:
    return ConversationBody.model_validate({"messages": list(messages), **fields})


def read(*messages: dict[str, Any], **fields: Any) -> list[ChatMessage]:
    return chat_messages(body(*messages, **fields))


def shown(messages: list[ChatMessage]) -> list[tuple[Any, ...]]:
    """Role, text, and what else there is of: reasoning, names of calls, the call answered."""
    rows = []
    for message in messages:
        calls = tuple(call.function.name for call in message.tool_calls)
        rest = (message.reasoning_content, calls, message.tool_call_id)
        rows.append((message.role, message.text, *(each for each in rest if each)))
    return rows


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(each) for each in content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [text(each) for each in content]}


def text(block: Any) -> dict[str, Any]:
    return block if isinstance(block, dict) else {"type": "text", "text": block}


def call(call_id: str, name: str = "f", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def thinking(said: str, *, is_shown: bool = True) -> dict[str, Any]:
    return {
        "type": "thinking",
        "thinking": said if is_shown else "",
        "signature": sign(said, is_shown=is_shown),
    }


def test_a_text_is_one_block() -> None:
    assert read({"role": "user", "content": "hi"}, system="Be brief.") == read(
        user("hi"), system=[text("Be brief.")]
    )


def test_blocks_keep_their_order() -> None:
    chat = read(
        user("one", "two"),
        assistant(thinking("hmm"), "Let me see. ", call("1"), call("2", "g")),
        user(result("2", "late"), "and", "then", result("1", [text("a"), text("b")]), "go on"),
        {"role": "system", "content": "Hurry."},
        user("now"),
        system=[text("Be"), text("brief.")],
    )
    assert shown(chat) == [
        ("system", "Be\nbrief."),
        ("user", "one\ntwo"),
        ("assistant", "Let me see. ", "hmm", ("f", "g")),
        ("tool", "late", "2"),
        ("user", "and\nthen"),
        ("tool", "a\nb", "1"),
        ("user", "go on"),
        ("system", "Hurry."),
        ("user", "now"),
    ]


def test_turns_of_one_role_are_one_turn() -> None:
    chat = read(
        user("a"),
        user("b"),
        assistant(thinking("x")),
        assistant("c"),
        assistant("d", call("1")),
        assistant(call("2")),
        user(result("1"), result("2")),
        user("e"),
    )
    assert shown(chat) == [
        ("user", "a\nb"),
        ("assistant", "c\nd", "x", ("f",)),
        ("assistant", "", ("f",)),
        ("tool", "", "1"),
        ("tool", "", "2"),
        ("user", "e"),
    ]


def test_an_image_stands_where_it_stood() -> None:
    (message,) = read(user("look", {"type": "image", "source": PNG}, "there", "now"))
    assert [part.type for part in message.content] == ["text", "image_url", "text"]
    assert message.text == "lookthere\nnow"
    (image,) = message.images
    assert image.image_url.url == "data:image/png;base64,iVBORw0KGgo="


def test_a_call_that_failed_says_so() -> None:
    chat = read(user("a"), assistant(call("1")), user(result("1", "no disk", is_error=True)))
    assert chat[-1].text == "Error: no disk"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([user(result("1"))], "messages.0.content.0.tool_use_id"),
        ([user("a", result("1"))], "messages.0.content.1.tool_use_id"),
        ([user("a"), assistant({**thinking("x"), "thinking": "y"}), user("b")], None),
        (
            [user("a"), assistant({**thinking("", is_shown=False), "thinking": "y"}), user("b")],
            None,
        ),
        (
            [
                user("a"),
                assistant({"type": "thinking", "thinking": "", "signature": "astrai-text-%"}),
                user("b"),
            ],
            None,
        ),
    ],
)
def test_histories_that_make_no_sense(messages: list[Any], param: str | None) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(*messages)
    assert caught.value.param == (param or "messages.1.content.0.signature")


def test_going_on_with_an_answer_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        read(user("a"), assistant("The answer is ("))
    assert caught.value.answer_code == "unsupported_parameter"


@pytest.mark.parametrize("signature", ["", "of another server"])
def test_thinking_of_other_servers_is_taken_as_it_stands(signature: str) -> None:
    block = {"type": "thinking", "thinking": "hmm", "signature": signature}
    chat = read(user("a"), assistant(block, {"type": "redacted_thinking", "data": "x"}), user("b"))
    assert shown(chat)[1] == ("assistant", "", "hmm")


@given(TEXTS, st.booleans())
def test_signatures_bring_thinking_back(said: str, is_shown: bool) -> None:
    block = thinking(said, is_shown=is_shown)
    assert thinking_of(block["thinking"], block["signature"]) == said


@given(TEXTS, TEXTS, st.booleans())
def test_thinking_that_was_changed_is_noticed(said: str, changed: str, is_shown: bool) -> None:
    block = thinking(said, is_shown=is_shown)
    if changed != block["thinking"]:
        with pytest.raises(ValueError, match="the"):
            thinking_of(changed, block["signature"])


BLOCKS = st.lists(
    st.one_of(TEXTS.map(text), TEXTS.map(thinking), TEXTS.map(lambda said: call("1", said)))
)


@given(BLOCKS)
def test_nothing_of_an_answer_is_lost(blocks: list[dict[str, Any]]) -> None:
    """However reasoning, text and calls alternate."""
    _, message, _ = read(user("a"), assistant(*blocks), user("b"))
    assert message.text == "".join(block.get("text", "") for block in blocks)
    assert (message.reasoning_content or "") == "".join(
        block.get("thinking", "") for block in blocks
    )
    names = [block["name"] for block in blocks if block["type"] == "tool_use"]
    assert [each.function.name for each in message.tool_calls] == names


@given(st.lists(st.one_of(TEXTS, st.just(result("1"))), min_size=1))
def test_nothing_of_a_user_is_lost(blocks: list[Any]) -> None:
    said = read(user("a"), assistant(call("1")), user(*blocks))[2:]
    texts = [block for block in blocks if isinstance(block, str)]
    assert sum(message.role == "tool" for message in said) == len(blocks) - len(texts)
    assert "".join(message.text for message in said).replace("\n", "") == (
        "".join(texts).replace("\n", "")
    )


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("all", [True, True, True, True]),
        ({"type": "all"}, [True, True, True, True]),
        (None, [False, False, True, True]),
        ({"type": "thinking_turns", "value": 2}, [False, True, True, True]),
        ({"type": "thinking_turns", "value": 9}, [True, True, True, True]),
    ],
)
def test_thinking_of_older_turns_is_cleared(keep: Any, kept: list[bool]) -> None:
    """A turn goes on over the results of calls; one without thinking does not count."""
    edit = {"type": "clear_thinking_20251015", "keep": keep}
    chat = read(
        user("a"),
        assistant(thinking("1"), "x"),
        user("b"),
        assistant(thinking("2"), "x"),
        user("c"),
        assistant(thinking("3"), call("1")),
        user(result("1")),
        assistant(thinking("4"), "x"),
        user("d"),
        assistant("x"),
        user("e"),
        context_management={"edits": [edit]},
    )
    answers = [message for message in chat if message.role == "assistant"][:4]
    assert [message.reasoning_content is not None for message in answers] == kept


def test_tools_are_those_of_all_protocols() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [{"name": "f", "description": "does", "input_schema": schema, "cache_control": {}}]
    assert body(user("a"), tools=tools).active_tools == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "does",
                "parameters": schema,
                "strict": False,
            },
        }
    ]
    assert body(user("a"), tools=tools, tool_choice={"type": "none"}).active_tools == []
