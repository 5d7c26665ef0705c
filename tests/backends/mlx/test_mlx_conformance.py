"""The mlx executor in float32 against the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import MODELS, ExecutorConformance, Model, OpenExecutor
from reference_decoder import ReferenceDecoder
from tiny_models import tiny_gguf

from astrai_cli.config import LimitsConfig
from backends.base import Executor, get_backend


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Those of the suite, but mlx-lm has one number for all of muse's norms of heads."""
    folder = tmp_path_factory.mktemp("conformance")
    norms = {
        f"blk.{layer}.attn_{which}_norm.weight": np.full(16, gain, np.float32)
        for layer in range(5)
        for which, gain in (("q", 3.87), ("k", 1.0))
    }
    paths = {
        name: tiny_gguf(folder, name=name, weights=norms if name == "muse" else None, **fields)
        for name, fields in MODELS.items()
    }
    return {name: Model(path, ReferenceDecoder(path)) for name, path in paths.items()}


class TestMlxConformance(ExecutorConformance):
    tolerance = 1e-4
    consistency = 1e-5

    @pytest.fixture
    def open_executor(self, export: Any) -> OpenExecutor:
        def open_exported(path: Path, **limits: Any) -> Executor:
            return get_backend("mlx").open(export(path), LimitsConfig(**limits))

        return open_exported
