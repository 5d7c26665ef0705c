"""`astrai pull`: fetch a model into the cache folder."""

from __future__ import annotations

from typing import Annotated

import typer

from astrai_cli.commands.parameters import with_settings
from astrai_cli.commands.prepare import PULLED_HELP
from astrai_cli.commands.progress import show_progress
from astrai_cli.settings import Settings


@with_settings("cache_dir")
def pull(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"{PULLED_HELP}."),
    ],
    *,
    settings: Settings,
) -> None:
    """Fetch a model file into the cache folder and print its path."""
    from astrai_cli.models.pull import pull as fetch

    with show_progress() as progress:
        path = fetch(model, settings.config.model.cache_dir, progress)
    print(path)
