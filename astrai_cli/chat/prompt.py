"""The input line of the chat: keys, history and completion."""

from __future__ import annotations

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from astrai_cli.chat.commands import COMMANDS

_QUOTES = '"""'


def message_of(text: str) -> str:
    """What was typed, without the triple quotes around a long message."""
    text = text.strip()
    if text.startswith(_QUOTES):
        text = text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return text


def is_open(text: str) -> bool:
    """Whether a message started with triple quotes has not ended yet."""
    text = text.strip()
    opened = text.startswith(_QUOTES)
    return opened and (len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        before = buffer.document.text_before_cursor
        if buffer.document.is_cursor_at_the_end and before.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _history(file: Path) -> History:
    """The history file, or memory alone where it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # What people ask a model is nobody else's to read.
        file.touch(mode=0o600)
        with file.open("ab"):
            return FileHistory(file)
    except OSError:
        return InMemoryHistory()


def open_prompt(history_file: Path) -> PromptSession[str]:
    """The prompt; its `prompt()` raises KeyboardInterrupt on Ctrl-C, EOFError on Ctrl-D."""
    session: PromptSession[str] = PromptSession(
        "> ",
        multiline=True,
        key_bindings=_keys(),
        history=_history(history_file),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=Condition(lambda: session.default_buffer.text.startswith("/")),
        prompt_continuation="  ",
    )
    return session
