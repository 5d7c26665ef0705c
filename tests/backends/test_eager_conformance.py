"""The eager executor, float32 throughout, against the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance import ExecutorConformance, OpenExecutor, models

from astrai_cli.config import LimitsConfig
from backends.base import Executor
from backends.registry import get_backend

__all__ = ["models"]


class TestEagerConformance(ExecutorConformance):
    tolerance = 1e-4
    consistency = 1e-5

    @pytest.fixture
    def open_executor(self) -> OpenExecutor:
        def open_gguf(path: Path, **limits: Any) -> Executor:
            return get_backend("eager").open(path, LimitsConfig(**limits))

        return open_gguf
