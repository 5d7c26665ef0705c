"""MODEL made ready to run, for the commands that run one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from astrai_cli.commands.progress import show_progress
from astrai_cli.config import Config

if TYPE_CHECKING:
    from astrai_cli.loading import RunnableModel

PULLED_HELP = "An alias, such as smollm2-135m, or hf:ORG/REPO/FILE"
FILE_HELP = f"{PULLED_HELP}; a GGUF file or a Hugging Face folder"
MODEL_HELP = f"{FILE_HELP}; an exported folder."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]


def prepare(model: str, config: Config) -> RunnableModel:
    """Pull and export MODEL where that is needed, showing progress. Raises AstraiError."""
    from astrai_cli.loading import prepare_model

    with show_progress() as progress:
        return prepare_model(model, config.model, config.export, progress)
