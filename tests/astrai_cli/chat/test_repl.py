"""The chat in a real terminal."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import ASTRAI
from parrot import SAYING
from scripted_server import END, ScriptedServer, event, scripted_server
from terminal import Terminal, terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

MARKDOWN = "## Colours\n\n- **red**\n- *blue*\n\n```python\nprint(1)\n```\n\nThe `end`"


def answer(body: dict[str, Any]) -> Iterable[str | bytes]:
    """The server's answers, by the last question."""
    match body["messages"][-1]["content"]:
        case "markdown":
            yield from MARKDOWN
        case "long":
            yield from (f"- item {n}\n" for n in range(50))
        case "endless":
            yield from itertools.repeat("on and ")
        case "hostile":
            yield "\x1b]0;owned\x07\x1b[2J\x1b[31m fine"
        case "fail":
            yield "so far"
            yield event({"error": {"message": "step failed"}})
            return
        case other:
            yield f"you said <{other!r}>".replace("<", "«").replace(">", "»")
    yield END


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(answer) as running:
        yield running


@pytest.fixture
def chat(server: ScriptedServer, tmp_path: Path) -> Iterator[Terminal]:
    command = [ASTRAI, "chat", "--url", server.url, "--history-file", tmp_path / "history"]
    with terminal(command, tmp_path) as window:
        window.wait_for("/help lists commands and keys")
        yield window


def test_markdown_is_rendered(chat: Terminal) -> None:
    chat.say("markdown")
    shown = chat.wait_for("The end")
    for line in (" • red", " • blue", " print(1)"):
        assert line in shown.splitlines()
    assert "**" not in shown
    assert shown.count("Colours") == 1


def test_an_answer_longer_than_the_screen_is_whole_and_once(chat: Terminal) -> None:
    chat.say("long")
    chat.wait_for("item 49")
    lines = [line for line in chat.text().splitlines() if "item" in line]
    assert lines == [f" • item {n}" for n in range(50)]


def test_ctrl_c_stops_the_answer_and_not_the_program(
    chat: Terminal, server: ScriptedServer
) -> None:
    chat.say("endless")
    chat.wait_for("on and on")
    chat.press("C-c")
    chat.wait_for("stopped")
    assert server.gone.wait(60)
    chat.say("still there?")
    chat.wait_for("you said «'still there?'»")
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    chat.press("C-d")
    chat.wait_for("ended 0")


def test_ctrl_c_at_the_prompt_drops_the_line(chat: Terminal) -> None:
    chat.type("never mind")
    chat.press("C-c")
    chat.say("next")
    assert "never mind«" not in chat.wait_for("you said «'next'»")


def test_messages_of_several_lines(chat: Terminal, server: ScriptedServer) -> None:
    chat.say("one\\")
    chat.say("two")
    chat.wait_for("you said", 1)
    chat.type("three")
    chat.press("M-Enter")
    chat.say("four")
    chat.wait_for("you said", 2)
    chat.say('"""five')
    chat.say("six")
    chat.say('seven"""')
    chat.wait_for("you said", 3)
    said = [body["messages"][-1]["content"] for body in server.bodies]
    assert said == ["one\ntwo", "three\nfour", "five\nsix\nseven"]


def test_control_sequences_of_the_model_do_nothing(chat: Terminal) -> None:
    chat.say("hostile")
    chat.wait_for("␛]0;owned␇␛[2J␛[31m fine")
    assert chat.tmux("display-message", "-p", "#{pane_title}").strip() != "owned"


def test_errors_are_shown_and_the_turn_is_dropped(chat: Terminal, server: ScriptedServer) -> None:
    chat.say("fail")
    chat.wait_for("step failed")
    chat.say("again")
    chat.wait_for("you said")
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["again"]


def test_slash_commands(chat: Terminal, server: ScriptedServer, tmp_path: Path) -> None:
    chat.say("/sytem be kind")
    chat.wait_for("/sytem: no such command; did you mean /system?")
    chat.say("/system be kind")
    chat.say("/params temperature=0.5 seed=3")
    chat.wait_for("temperature=0.5")
    chat.say("/params top_p=7")
    chat.wait_for("/params: top_p: '7' is not a number above 0.0 and up to 1.0")
    chat.say("hello")
    chat.wait_for("you said «'hello'»")
    assert server.bodies[-1]["messages"][0] == {"role": "system", "content": "be kind"}
    assert (server.bodies[-1]["temperature"], server.bodies[-1]["seed"]) == (0.5, 3)
    chat.say("/stats")
    chat.wait_for("3 prompt tokens, 2 generated")
    chat.say("/save kept.json")
    chat.wait_for("saved 3 messages to kept.json")
    chat.say("/reset")
    chat.wait_for("starts anew")
    chat.say("/load missing.json")
    chat.wait_for("missing.json: cannot be read")
    chat.say("/load kept.json")
    chat.wait_for("loaded 3 messages")
    chat.say("/help")
    chat.wait_for("Ctrl-D leaves")
    chat.say("more")
    chat.wait_for("you said «'more'»")
    contents = [message["content"] for message in server.bodies[-1]["messages"]]
    assert contents == ["be kind", "hello", "you said «'hello'»", "more"]
    assert len(json.loads((tmp_path / "kept.json").read_text())["messages"]) == 3
    chat.say("/exit")
    chat.wait_for("ended 0")


def test_history_outlives_the_program(server: ScriptedServer, tmp_path: Path) -> None:
    command = [ASTRAI, "chat", "--url", server.url, "--history-file", tmp_path / "history"]
    with terminal(command, tmp_path) as first:
        first.say("remember me")
        first.wait_for("you said")
        first.press("C-d")
        first.wait_for("ended 0")
    with terminal(command, tmp_path) as second:
        second.wait_for("/help")
        second.press("Up", "Enter")
        second.wait_for("you said «'remember me'»")


def test_keys_pressed_during_an_answer_wait_for_the_prompt(
    server: ScriptedServer, tmp_path: Path
) -> None:
    go_on = threading.Event()

    def slow(body: dict[str, Any]) -> Iterator[str | bytes]:
        yield f"{len(body['messages'])} thinking"
        go_on.wait(60)
        yield " done"
        yield END

    server.script = slow
    command = [ASTRAI, "chat", "--url", server.url, "--history-file", tmp_path / "history"]
    with terminal(command, tmp_path) as window:
        window.wait_for("/help")
        window.say("first")
        window.wait_for("1 thinking")
        window.say("second")
        assert "second" not in window.text()
        go_on.set()
        window.wait_for("3 thinking done")


def test_a_model_on_this_machine(parrot: Path, tmp_path: Path) -> None:
    variables = {"ASTRAI_HISTORY_FILE": str(tmp_path / "history"), "ASTRAI_TOP_K": "1"}
    command = [ASTRAI, "chat", parrot, "--backend", "eager"]
    with terminal(command, tmp_path, variables) as window:
        window.wait_for("parrot-llama-0 · /help")
        window.say("Well?")
        window.wait_for(SAYING)
        window.say("/stats")
        window.wait_for("tokens_decoded")
        window.say("why " * 300)
        window.wait_for("astrai: ", 1)
        window.say("/reset")
        window.say("Well?")
        window.wait_for(SAYING, 2)
        window.press("C-d")
        window.wait_for("ended 0")
