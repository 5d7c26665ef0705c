"""`astrai export`: a model file becomes an artifact for a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astrai_cli.commands.parameters import with_settings
from astrai_cli.commands.prepare import FILE_HELP
from astrai_cli.commands.progress import show_progress
from astrai_cli.errors import InvalidInputError
from astrai_cli.settings import Settings


@with_settings("model", "export")
def export(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help=f"{FILE_HELP}."),
    ] = None,
    *,
    gguf: Annotated[
        Path | None, typer.Option(metavar="<path>", help="GGUF file, in place of MODEL.")
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option(metavar="<path>", help="Hugging Face folder, in place of MODEL."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="<path>", help="Folder to write; ./NAME-BACKEND if left out."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an artifact that is there already.")
    ] = False,
    settings: Settings,
) -> None:
    """Export a model file as an artifact and print the artifact's path."""
    from astrai_cli.artifact import export_model
    from astrai_cli.models.resolve import resolve_model_file
    from astrai_cli.models.source import model_name
    from backends.registry import default_backend

    if [model, gguf, hf].count(None) != 2:
        raise InvalidInputError("export takes one of MODEL, --gguf FILE and --hf FOLDER")
    config = settings.config
    backend = config.model.backend or default_backend()
    with show_progress() as progress:
        named = str(model or gguf or hf)
        source = gguf or resolve_model_file(named, config.model.cache_dir, progress)
        target = output or Path(f"{model_name(source)}-{backend}")
        export_model(source, target, backend, config.export, progress, overwrite=force)
    print(target)
