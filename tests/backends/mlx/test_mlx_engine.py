"""The engine on the mlx executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_suite import EngineSuite
from muse_fixtures import MMPROJ, Q4_K_M


class TestMlxEngine(EngineSuite):
    backend = "mlx"

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls, export: Any) -> Path:
        path: Path = export(Q4_K_M, MMPROJ)
        return path
