"""`astrai build`: compile what a backend needs on this machine."""

from __future__ import annotations

from astrai_cli.commands.parameters import with_settings
from astrai_cli.commands.progress import show_progress
from astrai_cli.settings import Settings


@with_settings("backend")
def build(*, settings: Settings) -> None:
    """Compile what a backend needs on this machine and print the file made."""
    from backends.registry import default_backend, get_backend

    backend = get_backend(settings.config.model.backend or default_backend())
    with show_progress() as progress:
        made = backend.build(progress)
    if made is not None:
        print(made)
