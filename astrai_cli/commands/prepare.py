"""MODEL made ready to run, for the commands that run one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from astrai_cli.commands.progress import show_progress
from astrai_cli.config import Config, ExportConfig

if TYPE_CHECKING:
    from astrai_cli.loading import RunnableModel

MODEL_HELP = "An alias, such as smollm2-135m, a GGUF file, or an artifact folder."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]


def prepare(model: str, config: Config) -> RunnableModel:
    """Pull and export MODEL where that is needed, showing progress. Raises AstraiError."""
    from astrai_cli.loading import prepare_model

    # One artifact serves every smaller chunk, so only a larger one needs its own.
    chunk = max(config.export.max_prefill_chunk, ExportConfig().max_prefill_chunk)
    export = config.export.model_copy(update={"max_prefill_chunk": chunk})
    with show_progress() as progress:
        return prepare_model(model, config.model, export, progress)
