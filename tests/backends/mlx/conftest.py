"""What the tests of the mlx backend share: exports, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig

Export = Callable[..., Path]
"""export(model, mmproj=None, dtype="float32") -> the artifact's folder."""


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports a model file for the mlx backend the first time it is asked to."""
    folder = tmp_path_factory.mktemp("mlx")

    @cache
    def export_once(source: Path, mmproj: Path | None, dtype: str) -> Path:
        options = ExportConfig.model_validate({"mmproj": mmproj, "activation_dtype": dtype})
        target = folder / f"{source.stem}-{dtype}-{mmproj is not None}"
        return export_model(source, target, "mlx", options, lambda what, done: None).path

    return lambda source, mmproj=None, dtype="float32": export_once(source, mmproj, dtype)
