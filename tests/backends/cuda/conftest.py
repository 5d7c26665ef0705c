"""What the tests of the cuda backend share: exports, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig, LimitsConfig
from backends.base import Executor
from backends.registry import get_backend

Export = Callable[..., Path]
"""export(model, mmproj=None, **options) -> the artifact's folder; float32 if not told otherwise."""


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports a model file for the cuda backend the first time it is asked to."""
    folder = tmp_path_factory.mktemp("cuda")

    @cache
    def export_once(source: Path, mmproj: Path | None, options: frozenset[Any]) -> Path:
        chosen = {"activation_dtype": "float32", "mmproj": mmproj, **dict(options)}
        target = folder / str(len(list(folder.iterdir())))
        config = ExportConfig.model_validate(chosen)
        return export_model(source, target, "cuda", config, lambda what, done: None).path

    return lambda source, mmproj=None, **options: export_once(
        source, mmproj, frozenset(options.items())
    )


@pytest.fixture(scope="session")
def open_cuda() -> Callable[..., Executor]:
    """Opens an artifact on the processor."""

    def open_on_cpu(artifact: Path, **limits: Any) -> Executor:
        return get_backend("cuda").open(artifact, LimitsConfig(device="cpu", threads=1, **limits))

    return open_on_cpu
