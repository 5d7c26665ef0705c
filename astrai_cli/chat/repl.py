"""The chat loop: in a terminal with an input line and Markdown, or piped and plain."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from astrai_cli.chat.commands import run_command
from astrai_cli.chat.markdown import MarkdownWriter
from astrai_cli.chat.prompt import message_of, open_prompt
from astrai_cli.chat.session import ChatSession
from astrai_cli.chat.terminal import echo_off, harmless
from astrai_cli.errors import AstraiError, InvalidInputError

_MAX_PIPED_BYTES = 2**24


def answer_plainly(session: ChatSession, question: str) -> None:
    """Ask one question and write the answer to stdout as it comes, nothing else."""
    # A pipe gets the model's text as it is; a terminal must not obey it.
    keep_safe = harmless if sys.stdout.isatty() else str
    last = "\n"

    def show(text: str) -> None:
        nonlocal last
        last = text
        sys.stdout.write(keep_safe(text))
        sys.stdout.flush()

    session.ask(question, show)
    if not last.endswith("\n"):
        sys.stdout.write("\n")


def read_piped_question() -> str:
    """All of stdin as one question.

    Raises InvalidInputError where it is empty, too long or not text.
    """
    piped = sys.stdin.buffer.read(_MAX_PIPED_BYTES + 1)
    if len(piped) > _MAX_PIPED_BYTES:
        raise InvalidInputError(f"stdin: a question of over {_MAX_PIPED_BYTES} bytes")
    try:
        question = piped.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"stdin: is not UTF-8 text from byte {error.start} on") from error
    if not question:
        raise InvalidInputError(
            "stdin: no question to answer; as an argument it comes second, after MODEL"
        )
    return question


def run_repl(session: ChatSession, history_file: Path) -> None:
    """Talk until Ctrl-D or `/exit`; errors are shown and the loop goes on."""
    console = Console(highlight=False)
    prompt = open_prompt(history_file)
    console.print(Text(f"{session.source.model} · /help lists commands and keys", style="dim"))
    while True:
        try:
            text = message_of(prompt.prompt())
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if text.startswith("/"):
                console.print(Text(harmless(run_command(session, text)), style="dim"))
            elif text:
                _answer(session, console, text)
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print(Text("stopped", style="yellow"))
        except AstraiError as error:
            console.print(Text(harmless(f"astrai: {error}"), style="red"))


def _answer(session: ChatSession, console: Console, question: str) -> None:
    if console.is_dumb_terminal:
        answer_plainly(session, question)
        return
    writer = MarkdownWriter(console)
    with echo_off():
        try:
            session.ask(question, writer.feed)
        finally:
            writer.finish()
