"""The help of a command: plain text, its options by group."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PlainHelpCommand(TyperCommand):
    """Writes every option's name in full: the columns of Typer's tables cut long ones."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "rich_markup_mode": None})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = f"{parameter.param_type_name.capitalize()}s"
                title = getattr(parameter, "rich_help_panel", None) or kind
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
