"""`astrai config`: the options in effect and where each came from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from astrai_cli.commands.parameters import JsonFlag, with_settings
from astrai_cli.options import all_options, group_types, spell
from astrai_cli.settings import Settings


@with_settings(*group_types())
def config(
    *,
    as_json: JsonFlag = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all options instead.")
    ] = False,
    settings: Settings,
) -> None:
    """Print the options in effect and where each came from."""
    if markdown:
        print(reference(), end="")
    elif as_json:
        print(json.dumps(_effective(settings), indent=2))
    else:
        _print_table(settings)


def reference() -> str:
    """All options as a Markdown document."""
    lines = [
        "# Configuration",
        "",
        "Every option has one name: `max_context` in `astrai.toml`, `ASTRAI_MAX_CONTEXT` in the",
        "environment, `--max-context` on the command line. Later sources win: defaults, then",
        "`astrai.toml` in the current folder (or the file of `--config`), then variables, then",
        "flags. In the file a key may stand at the top or in the table of its group. A name that",
        "stands in two groups is one option. `astrai config` prints the values in effect and",
        "where each came from. This page is made by `astrai config --markdown`.",
    ]
    for group, model in group_types().items():
        lines += ["", f"## {group}", "", model.__doc__ or "", ""]
        lines += ["| option | default | takes | meaning |", "| --- | --- | --- | --- |"]
        for name in model.model_fields:
            option = all_options()[name]
            default = "" if option.default is None else f"`{option.default}`"
            lines.append(f"| `{name}` | {default} | {option.allowed} | {option.help} |")
    return "\n".join(lines) + "\n"


def _effective(settings: Settings) -> dict[str, Any]:
    values = settings.config.model_dump(mode="json")
    return {
        name: {
            "value": values[option.groups[0]][name],
            "source": settings.origins[name],
            "groups": list(option.groups),
        }
        for name, option in all_options().items()
    }


def _print_table(settings: Settings) -> None:
    from astrai_cli.commands.tables import stdout_console, table

    rows = (
        (name, "" if row["value"] is None else spell(row["value"]), row["source"])
        for name, row in _effective(settings).items()
    )
    stdout_console().print(table(("option", "value", "source"), rows))
