"""What the groups of options are made of: types, bounds and folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

INT32_MAX = 2**31 - 1
MAX_REQUEST_BYTES = 32 * 2**20
MAX_IMAGE_BYTES = 20 * 2**20
MAX_CHOICES = 128
ToolParserName = Literal["none", "atem", "hermes"]
ApiDialect = Literal["openai", "openrouter"]


def _user_dir(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "astrai"


def default_cache_dir() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/astrai, or ~/.cache/astrai."""
    return _user_dir("XDG_CACHE_HOME", ".cache")


def default_history_file() -> Path:
    """Where `chat` remembers what was typed: $XDG_STATE_HOME/astrai, or ~/.local/state/astrai."""
    return _user_dir("XDG_STATE_HOME", ".local/state") / "chat_history"


def _split_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


def _split_texts(value: object) -> object:
    """Each of several texts may be several itself, as one variable holds all of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    return [part.strip() for text in texts for part in text.split(",")]


def is_visible_ascii(text: str) -> bool:
    """Whether a text is one that a header can carry, and not empty."""
    return text.isascii() and text.isprintable() and " " not in text and text != ""


def _check_key(key: SecretStr) -> SecretStr:
    if not is_visible_ascii(key.get_secret_value()):
        raise ValueError("must be visible ASCII")
    return key


UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path, in which a leading `~` is the user's home folder."""

Counts = Annotated[
    tuple[Annotated[int, Ge(1), Le(65536)], ...], BeforeValidator(_split_commas), Len(1, 64)
]
"""A short list of positive counts; text is split at its commas."""

Texts = Annotated[tuple[Annotated[str, MinLen(1)], ...], BeforeValidator(_split_texts), MaxLen(64)]
"""A few texts; each is split at its commas."""


class Group(BaseModel):
    """One group of options; frozen, so that a config can be shared between threads."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]


class Keyed(Group):
    """The option that a server and its clients share."""

    api_key: ApiKey | None = Field(
        None,
        description="Key of the server, in visible ASCII: what `serve` asks of clients, and what "
        "`chat` and `bench serve` send. Other users of the machine can read a flag in the list of "
        "processes; they cannot read $ASTRAI_API_KEY.",
    )


class Remote(Keyed):
    """The options of a server that somebody runs."""

    url: str | None = Field(
        None,
        description="OpenAI-compatible server, such as http://127.0.0.1:8000; `bench serve` needs "
        "one, `chat` runs a model on this machine when left out.",
    )
