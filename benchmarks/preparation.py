"""What every benchmark begins with: a model that can run, and word of what is being done."""

from __future__ import annotations

import sys
from pathlib import Path

from astrai_cli.benchmark.runs import find_reference
from astrai_cli.config import Config, ExportConfig, ModelConfig
from astrai_cli.loading import RunnableModel, prepare_model


def note(what: str) -> None:
    print(f"\r{what:70}", end="", file=sys.stderr, flush=True)


def prepare(model: str, backend: str) -> RunnableModel:
    """What MODEL names, pulled and exported where need be."""
    return prepare_model(
        model,
        ModelConfig(backend=backend),
        ExportConfig(),
        lambda what, done: note(f"{done:4.0%} {what}"),
    )


def prepare_beside_its_file(model: str) -> tuple[RunnableModel, Path]:
    """A model for the cpu backend, and the GGUF file it was exported from."""
    runnable = prepare(model, "cpu")
    return runnable, find_reference(model, runnable, Config(model=ModelConfig(backend="cpu")))
