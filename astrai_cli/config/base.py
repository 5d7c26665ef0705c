"""What the groups of options are made of: types, bounds and folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

INT32_MAX = 2**31 - 1
MAX_REQUEST_BYTES = 32 * 2**20
MAX_IMAGE_BYTES = 20 * 2**20
MAX_CHOICES = 128
ToolParserName = Literal["none", "atem", "hermes"]


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


UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path, in which a leading `~` is the user's home folder."""

Counts = Annotated[
    tuple[Annotated[int, Ge(1), Le(65536)], ...], BeforeValidator(_split_commas), Len(1, 64)
]
"""A short list of positive counts; text is split at its commas."""


class Group(BaseModel):
    """One group of options; frozen, so that a config can be shared between threads."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Remote(Group):
    """The options of a server that somebody runs."""

    url: str | None = Field(
        None,
        description="OpenAI-compatible server to talk to; chat runs a model on this machine "
        "when left out.",
    )
    api_key: SecretStr | None = Field(None, description="Key that requests to the server carry.")
