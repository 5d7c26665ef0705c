"""Which ids a prompt takes over from a session's transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byte_tokenizer import END, byte_text
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.serving.templates import ChatTemplate, Message
from astrai_cli.serving.transcripts import ChatPrompt, Transcripts, encode_chat

TEXT = byte_text(END)
TEMPLATE = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = st.text("abc", min_size=1, max_size=3)


def render(messages: Sequence[Message], begin: bool) -> str:
    return TEMPLATE.render(messages, add_generation_prompt=begin)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def shown(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Session:
    """Answers every prompt with ids that no text has."""

    def __init__(self) -> None:
        self.transcripts = Transcripts()

    def encode(self, messages: Sequence[Message], options: Any = None) -> ChatPrompt:
        return encode_chat(messages, render, TEXT, self.transcripts.get("s"), options)

    def answer(self, messages: Sequence[Message], text: str, ids: list[int]) -> tuple[int, ...]:
        prompt = self.encode(messages)
        self.transcripts.record("s", prompt, shown(text), ids, capacity=2)
        return (*prompt.ids, *ids)


def as_text(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(TEXT.encode_prompt(render(messages, True)))


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5), st.data())
def test_ids_are_taken_up_to_the_first_change(turns: list[tuple[str, str]], data: Any) -> None:
    session = Session()
    messages: list[Message] = []
    histories: list[tuple[int, ...]] = []
    for number, (question, text) in enumerate(turns):
        messages.append(user(question))
        histories.append(session.answer(messages, text, [200 + number, END]))
        messages.append(shown(text))
    n_kept = data.draw(st.integers(0, len(turns)))
    changed = [*messages[: 2 * n_kept], user("other"), *messages[2 * n_kept + 1 :], user("more")]
    prompt = session.encode(changed).ids
    if n_kept == 0:
        assert prompt == as_text(changed)
    else:
        # The answer brought its end token; what follows is encoded as it would be alone.
        rest = render(changed, True)[len(render(messages[: 2 * n_kept], False)) - 1 :]
        assert prompt == (*histories[n_kept - 1], *TEXT.encode_prompt(rest))


def test_an_unfinished_answer_is_closed() -> None:
    session = Session()
    history = session.answer([user("a")], "b", [200])
    prompt = session.encode([user("a"), shown("b"), user("c")]).ids
    assert prompt == (*history, END, *b"\n[user]c", END, *b"\n[assistant]")


def test_an_answer_that_ended_in_another_end_token_is_closed_by_the_templates() -> None:
    text = byte_text(END, 200)
    transcripts = Transcripts()
    prompt = encode_chat([user("a")], render, text, None)
    transcripts.record("s", prompt, shown("b"), [201, 200], capacity=1)
    messages = [user("a"), shown("b"), user("c")]
    again = encode_chat(messages, render, text, transcripts.get("s"))
    assert again.ids[len(prompt.ids) :][:3] == (201, END, ord("\n"))


def test_another_answer_or_other_options_are_taken_as_text() -> None:
    session = Session()
    session.answer([user("a")], "b", [200, END])
    changed = [user("a"), shown("x"), user("c")]
    assert session.encode(changed).ids == as_text(changed)
    same = [user("a"), shown("b"), user("c")]
    assert session.encode(same, options={"tools": []}).ids == as_text(same)
    assert session.encode(same).ids != as_text(same)


def test_reasoning_need_not_come_back() -> None:
    session = Session()
    prompt = session.encode([user("a")])
    answer = {**shown("b"), "reasoning_content": "hm"}
    session.transcripts.record("s", prompt, answer, [200, 201, END], capacity=2)
    assert session.encode([user("a"), shown("b"), user("c")]).ids[: len(prompt.ids) + 3] == (
        *prompt.ids,
        200,
        201,
        END,
    )


def test_other_reasoning_is_an_edit() -> None:
    session = Session()
    prompt = session.encode([user("a")])
    answer = {**shown("b"), "reasoning_content": "hm"}
    session.transcripts.record("s", prompt, answer, [200, 201, END], capacity=2)
    for reasoning, is_same in (("hm", True), ("ha", False)):
        messages = [user("a"), {**answer, "reasoning_content": reasoning}, user("c")]
        ids = session.encode(messages).ids
        assert (ids[len(prompt.ids) :][:2] == (200, 201)) == is_same


def test_a_forgotten_transcript_is_not_used() -> None:
    session = Session()
    messages = [user("a"), shown("b"), user("c")]
    for name in ("s", None):
        session.answer([user("a")], "b", [200, END])
        assert session.encode(messages).ids != as_text(messages)
        session.transcripts.forget(name)
        assert session.encode(messages).ids == as_text(messages)


def test_only_so_many_sessions_are_remembered() -> None:
    transcripts = Transcripts()
    prompt = encode_chat([user("a")], render, TEXT, None)
    for name in ("first", "second", "first", "third"):
        transcripts.record(name, prompt, shown("b"), [END], capacity=2)
    assert transcripts.get("second") is None
    assert transcripts.get("first") is not None
