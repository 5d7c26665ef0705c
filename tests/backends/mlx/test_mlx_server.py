"""A small trained Muse Glimmer served by the mlx backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from muse_fixtures import CHAT_MMPROJ, CHAT_MODEL
from server_suite import ServerSuite


class TestMlxServer(ServerSuite):
    backend = "mlx"

    @pytest.fixture(scope="class")
    @classmethod
    def artifact(cls, export: Any) -> Path:
        path: Path = export(CHAT_MODEL, CHAT_MMPROJ)
        return path
