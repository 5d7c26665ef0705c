"""The cuda executor against the suite, on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from conformance import ExecutorConformance, OpenExecutor, models

from backends.base import Executor

__all__ = ["models"]


class CudaConformance(ExecutorConformance):
    """The suite on artifacts that compute in `dtype`."""

    dtype: ClassVar[str]

    @pytest.fixture
    def open_executor(self, export: Any, open_cuda: Any) -> OpenExecutor:
        def open_exported(path: Path, **limits: Any) -> Executor:
            executor: Executor = open_cuda(export(path, activation_dtype=self.dtype), **limits)
            return executor

        return open_exported


class TestFloat32(CudaConformance):
    dtype = "float32"
    tolerance = 1e-4
    consistency = 1e-5


class TestBfloat16(CudaConformance):
    """Eight bits of precision; a window that is off by one costs 25 % of the median row."""

    dtype = "bfloat16"
    tolerance = 0.3
    consistency = 0.1
