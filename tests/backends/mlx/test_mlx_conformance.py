"""The mlx executor against the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conformance import MODELS, ExecutorConformance, Model, OpenExecutor
from reference_decoder import ReferenceDecoder
from tiny_models import tiny_gguf

from astrai_cli.config import LimitsConfig
from backends.base import Executor
from backends.registry import get_backend


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


class MlxConformance(ExecutorConformance):
    """The suite on artifacts that compute in `dtype`."""

    dtype: ClassVar[str]

    @pytest.fixture
    def open_executor(self, export: Any) -> OpenExecutor:
        def open_exported(path: Path, **limits: Any) -> Executor:
            return get_backend("mlx").open(export(path, None, self.dtype), LimitsConfig(**limits))

        return open_exported


class TestFloat32(MlxConformance):
    dtype = "float32"
    tolerance = 1e-4
    consistency = 1e-5


class TestBfloat16(MlxConformance):
    """Eight bits of precision; a window that is off by one costs 25 % of the median row."""

    dtype = "bfloat16"
    tolerance = 0.3
    consistency = 0.1
