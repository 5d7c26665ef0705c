"""Transcripts: written whole, read with care."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrai_cli.chat.conversation import Conversation
from astrai_cli.errors import InvalidInputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(system=st.none() | TEXT.filter(bool), turns=st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_a_saved_conversation_loads_as_it_was(
    tmp_path: Path, system: str | None, turns: list[tuple[str, str]]
) -> None:
    saved = Conversation(system)
    for question, answer in turns:
        saved.add(question, answer)
    saved.save(tmp_path / "chat.json", "model")
    loaded = Conversation("other")
    loaded.load(tmp_path / "chat.json")
    assert loaded.messages == saved.messages
    assert loaded.system == system
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a saved conversation"),
        ("[]", "is not a saved conversation"),
        ('{"format": "astrai-chat/2", "model": "m", "messages": []}', "format"),
        ('{"format": "astrai-chat/1", "model": "m", "messages": [{"role": "x"}]}', "messages.0"),
        (
            json.dumps({"model": "m", "messages": [{"role": "assistant", "content": "a"}]}),
            "not of user and assistant in order",
        ),
    ],
)
def test_what_is_no_transcript_changes_nothing(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(content)
    conversation = Conversation("system")
    conversation.add("question", "answer")
    before = conversation.messages
    with pytest.raises(InvalidInputError) as caught:
        conversation.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert conversation.messages == before


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.json: cannot be read"):
        Conversation().load(tmp_path / "none.json")
    with pytest.raises(InvalidInputError, match=r"chat\.json: cannot be written"):
        Conversation().save(tmp_path / "no" / "chat.json", "model")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text("old")
    conversation = Conversation()
    conversation.add("lone surrogate \ud800", "x")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        conversation.save(path, "model")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
