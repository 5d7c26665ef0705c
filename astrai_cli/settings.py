"""Effective options: defaults, then `astrai.toml`, then `ASTRAI_*` variables, then flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from astrai_cli.config import Config, Group
from astrai_cli.errors import InvalidInputError
from astrai_cli.options import Option, all_options, group_types, spell

CONFIG_FILE = "astrai.toml"
DEFAULT = "default"
_SHOWN_LENGTH = 80

G = TypeVar("G", bound=Group)


@dataclass(frozen=True, slots=True)
class Given:
    """A value from outside, and what to call its place in an error message."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The config in effect, and for each option by name where its value came from.

    Origins are "default", a flag, a variable, or a key with its file. In each group
    `model_fields_set` holds the options that were given, not left at their default.
    """

    config: Config
    origins: Mapping[str, str]


def read_settings(
    flags: Mapping[str, object],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Combine all sources; `flags` by option name, `file` instead of ./astrai.toml.

    Raises InvalidInputError naming the source, the value and what is allowed.
    """
    given = dict(_from_file(file))
    given.update(_from_environ(os.environ if environ is None else environ))
    for name, value in flags.items():
        given[name] = Given(value, all_options()[name].flag)
    groups = {group: _build(model, given) for group, model in group_types().items()}
    origins = {name: given[name].origin if name in given else DEFAULT for name in all_options()}
    return Settings(Config.model_validate(groups), origins)


def update_group(group: G, changes: Mapping[str, object], origin: str) -> G:
    """A copy of `group` with some options changed, which may be text as a user typed it.

    Raises InvalidInputError naming `origin`, the option, the value and what is allowed.
    """
    given = {
        name: Given(getattr(group, name), origin) for name in group.model_fields_set - {*changes}
    }
    given |= {name: Given(value, f"{origin}: {name}") for name, value in changes.items()}
    return _build(type(group), given)


def _build(model: type[G], given: Mapping[str, Given]) -> G:
    values = {name: given[name].value for name in model.model_fields if name in given}
    try:
        return model(**values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        option = all_options()[name]
        raise InvalidInputError(
            f"{given[name].origin}: {_shown(option, given[name].value)} is not {option.allowed}",
            param=name,
        ) from (None if option.is_secret else error)


def _shown(option: Option, value: object) -> str:
    if option.is_secret:
        return "the value"
    text = spell(value)
    return repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "…")


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    for name, option in all_options().items():
        value = environ.get(option.variable)
        if value == "" and option.is_secret:
            # Meant to be set: without it the server would be open to all.
            raise InvalidInputError(f"{option.variable} is empty", param=name)
        if value:
            yield name, Given(value, option.variable)


def _from_file(chosen: Path | None) -> Iterator[tuple[str, Given]]:
    """The keys of a config file; each may stand at the top or in the table of its group."""
    path = chosen or Path(CONFIG_FILE)
    if chosen is None and not path.is_file():
        return
    seen: set[str] = set()
    for key, name, value in _flatten(_parse(path), path):
        if name in seen:
            raise InvalidInputError(f"{path}: {name!r} is given twice", param=name)
        seen.add(name)
        # A number is not what `true` means, though pydantic would take it for 1.
        yield name, Given(spell(value) if isinstance(value, bool) else value, f"{path}: {key}")


def _parse(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{path}: {error}") from error


def _flatten(document: Mapping[str, object], path: Path) -> Iterator[tuple[str, str, object]]:
    """(key as written, option name, value) of each entry."""
    groups = group_types()
    for key, value in document.items():
        if isinstance(value, dict) and key in groups:
            for name, inner in value.items():
                if name not in groups[key].model_fields:
                    raise InvalidInputError(f"{path}: unknown option {name!r} in [{key}]")
                yield f"{key}.{name}", name, inner
        elif key in all_options():
            yield key, key, value
        else:
            raise InvalidInputError(f"{path}: unknown option {key!r}")
