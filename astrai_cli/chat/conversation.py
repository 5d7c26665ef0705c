"""A conversation, and its transcript on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from astrai_cli.errors import InvalidInputError

_MAX_TRANSCRIPT_BYTES = 64 * 2**20


class Message(BaseModel):
    """One message, with the fields every chat protocol has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Transcript(BaseModel):
    """What `/save` writes and `/load` reads."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["astrai-chat/1"] = "astrai-chat/1"
    model: str
    messages: list[Message]


def _replace_file(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class Conversation:
    """An optional system message, then turns of user and assistant."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        head = [Message(role="system", content=self.system)] if self.system else []
        return head + self.turns

    def add(self, question: str, answer: str) -> None:
        self.turns.append(Message(role="user", content=question))
        self.turns.append(Message(role="assistant", content=answer))

    def with_question(self, question: str) -> list[Message]:
        """All messages and one more of the user, which is not kept."""
        return [*self.messages, Message(role="user", content=question)]

    def save(self, path: Path, model: str) -> None:
        """Write the transcript; a file already there is replaced whole or not at all.

        Raises InvalidInputError where it cannot be written.
        """
        transcript = Transcript(model=model, messages=self.messages)
        try:
            content = transcript.model_dump_json(indent=2).encode() + b"\n"
        except ValueError as error:
            raise InvalidInputError(f"{path}: the conversation cannot be UTF-8 text") from error
        try:
            _replace_file(path, content)
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be written: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Replace this conversation by a saved one; left alone where the file is not one.

        Raises InvalidInputError naming the file and what is wrong with it.
        """
        try:
            if path.stat().st_size > _MAX_TRANSCRIPT_BYTES:
                raise InvalidInputError(
                    f"{path}: {path.stat().st_size} bytes, at most {_MAX_TRANSCRIPT_BYTES} are read"
                )
            transcript = Transcript.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "file"
            raise InvalidInputError(
                f"{path}: is not a saved conversation: {where}: {problem['msg']}"
            ) from error
        self._replace(path, transcript.messages)

    def _replace(self, path: Path, messages: list[Message]) -> None:
        has_system = bool(messages) and messages[0].role == "system"
        turns = messages[1:] if has_system else messages
        roles = ["user", "assistant"] * (len(turns) // 2)
        if [turn.role for turn in turns] != roles:
            raise InvalidInputError(f"{path}: its turns are not of user and assistant in order")
        self.system = messages[0].content if has_system else None
        self.turns = turns
