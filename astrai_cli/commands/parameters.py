"""Typer parameters built from the config model, so that no flag is defined twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from astrai_cli.options import Option, all_options
from astrai_cli.settings import read_settings

_METAVARS: dict[Any, str] = {int: "<int>", float: "<number>", Path: "<path>"}

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of the named groups and options, and pass it `settings`.

    The command takes a keyword `settings: Settings`; the flags stand in its place.
    Values reach the config model as they were typed: it alone converts and checks.
    """
    chosen = [
        option for option in all_options().values() if {option.name, *option.groups} & {*names}
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        hints = get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.items()
            if name != "settings"
        ]
        parameters += [_parameter(option, names) for option in chosen]
        parameters.append(_CONFIG_PARAMETER)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            file = values.pop("config")
            flags = {option.name: values.pop(option.name) for option in chosen}
            given = {name: value for name, value in flags.items() if value not in (None, [])}
            command(**values, settings=read_settings(given, file=file))

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(option: Option, names: Sequence[str]) -> inspect.Parameter:
    """An option as a Typer parameter: a switch, a path so that shells complete files, or text.

    It stands with the group that the command asked for.
    """
    group = next((each for each in option.groups if each in names), option.groups[0])
    flag = f"{option.flag}/--no-{option.flag[2:]}" if option.type is bool else option.flag
    info = typer.Option(
        flag,
        help=_help(option),
        metavar=_metavar(option),
        autocompletion=_completion(option),
        rich_help_panel=f"{group.capitalize()} options",
    )
    kind: Any = option.type if option.type in (Path, bool) else str
    if option.is_repeatable:
        kind = list[str]
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, info],
    )


def _metavar(option: Option) -> str | None:
    if option.type is bool:
        return None
    return _METAVARS.get(option.type, "|".join(option.choices) or "<text>")


def _help(option: Option) -> str:
    notes = [option.allowed] if option.is_number else []
    if option.default is not None:
        notes.append(f"default {option.default}")
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help


def _completion(option: Option) -> Callable[[str], list[str]] | None:
    if not option.choices:
        return None
    return lambda incomplete: [each for each in option.choices if each.startswith(incomplete)]


_CONFIG_PARAMETER = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="<path>", help="Options file to read instead of ./astrai.toml."
        ),
    ],
)
