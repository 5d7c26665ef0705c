"""The engine on the cuda executor, on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from engine_suite import EngineSuite
from muse_fixtures import MMPROJ, Q4_K_M


class TestCudaEngine(EngineSuite):
    backend = "cuda"
    limits: ClassVar[dict[str, Any]] = {**EngineSuite.limits, "device": "cpu", "threads": 1}

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls, export: Any) -> Path:
        path: Path = export(Q4_K_M, MMPROJ)
        return path
