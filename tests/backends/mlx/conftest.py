"""What the tests of the mlx backend share: exports, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig

Export = Callable[..., Path]
"""export(model, mmproj=None, dtype="float32", **options) -> the artifact's folder."""


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports a model file for the mlx backend the first time it is asked to."""
    folder = tmp_path_factory.mktemp("mlx")

    @cache
    def export_once(source: Path, mmproj: Path | None, dtype: str, options: frozenset[Any]) -> Path:
        chosen = {"mmproj": mmproj, "activation_dtype": dtype, **dict(options)}
        target = folder / str(len(list(folder.iterdir())))
        config = ExportConfig.model_validate(chosen)
        return export_model(source, target, "mlx", config, lambda what, done: None).path

    return lambda source, mmproj=None, dtype="float32", **options: export_once(
        source, mmproj, dtype, frozenset(options.items())
    )
