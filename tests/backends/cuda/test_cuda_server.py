"""A small trained Muse Glimmer served by the cuda backend, on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from muse_fixtures import CHAT_MMPROJ, CHAT_MODEL
from server_suite import ServerSuite


class TestCudaServer(ServerSuite):
    backend = "cuda"
    limits: ClassVar[dict[str, Any]] = {**ServerSuite.limits, "device": "cpu"}

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls, export: Any) -> Path:
        path: Path = export(CHAT_MODEL, CHAT_MMPROJ)
        return path
