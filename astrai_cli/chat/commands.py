"""The commands of the chat prompt: lines that start with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from astrai_cli.chat.session import ChatSession
from astrai_cli.config import SamplingConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.options import spell
from astrai_cli.settings import update_group


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command; `run` takes the rest of the line and returns what to show."""

    usage: str
    help: str
    run: Callable[[ChatSession, str], str]


def run_command(session: ChatSession, line: str) -> str:
    """Run a line that starts with a slash.

    Raises InvalidInputError for an unknown command or a bad argument, EOFError for `/exit`.
    """
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else "/help lists the commands"
        raise InvalidInputError(f"{name}: no such command; {hint}")
    return command.run(session, argument.strip())


def _help(session: ChatSession, argument: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*lines, "", KEYS])


def _system(session: ChatSession, argument: str) -> str:
    if argument:
        session.conversation.system = None if argument == "none" else argument
    return session.conversation.system or "no system message"


def _reset(session: ChatSession, argument: str) -> str:
    session.conversation.turns.clear()
    return "the conversation starts anew"


def _save(session: ChatSession, argument: str) -> str:
    path = _path(argument, "/save")
    session.conversation.save(path, session.source.model)
    return f"saved {len(session.conversation.messages)} messages to {path}"


def _load(session: ChatSession, argument: str) -> str:
    path = _path(argument, "/load")
    session.conversation.load(path)
    return f"loaded {len(session.conversation.messages)} messages from {path}"


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise InvalidInputError(f"{command}: needs a file name")
    return Path(argument).expanduser()


def _params(session: ChatSession, argument: str) -> str:
    changes: dict[str, str] = {}
    for word in argument.split():
        name, equals, value = word.partition("=")
        if name not in SamplingConfig.model_fields or not equals:
            names = ", ".join(SamplingConfig.model_fields)
            raise InvalidInputError(f"/params: {word!r} is not NAME=VALUE with a name of {names}")
        changes[name] = value
    session.sampling = update_group(session.sampling, changes, "/params")
    values = session.sampling.model_dump()
    return "\n".join(
        f"{name}={'unset' if value is None else spell(value)}" for name, value in values.items()
    )


def _stats(session: ChatSession, argument: str) -> str:
    lines = []
    if last := session.last:
        lines.append(f"last answer: ended by {last.reason} after {last.total:.2f} s")
        lines.append(f"first text after {last.first_text:.2f} s")
        if last.usage:
            decoding = last.total - last.first_text
            speed = (last.usage.completion_tokens - 1) / decoding if decoding > 0 else 0.0
            lines.append(
                f"{last.usage.prompt_tokens} prompt tokens, "
                f"{last.usage.completion_tokens} generated, {speed:.1f} tokens/s"
            )
    lines += [f"{name}: {value}" for name, value in session.source.stats().items()]
    return "\n".join(lines) or "no answer yet"


def _exit(session: ChatSession, argument: str) -> str:
    raise EOFError


KEYS = (
    "Enter sends; Alt-Enter, or a backslash before Enter, starts a new line;\n"
    'a message that starts with """ goes on until a line ends with """.\n'
    "Ctrl-C stops an answer, Ctrl-D leaves."
)

COMMANDS: dict[str, Command] = {
    "/help": Command("/help", "list the commands and keys", _help),
    "/system": Command("/system [TEXT|none]", "show or set the system message", _system),
    "/reset": Command("/reset", "forget the turns, keep the system message", _reset),
    "/save": Command("/save FILE", "write the conversation as JSON", _save),
    "/load": Command("/load FILE", "go on with a saved conversation", _load),
    "/params": Command("/params [NAME=VALUE ...]", "show or set sampling parameters", _params),
    "/stats": Command("/stats", "figures of the last answer and the model", _stats),
    "/exit": Command("/exit", "leave", _exit),
}
