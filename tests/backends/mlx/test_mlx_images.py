"""Images on the mlx backend in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from image_conformance import CELLS, ImageConformance, eager
from muse_fixtures import MMPROJ, Q4_K_M

from astrai_cli.config import LimitsConfig
from backends.base import Executor
from backends.registry import get_backend

__all__ = ["eager"]


@pytest.fixture(scope="module")
def opened(export: Any) -> Iterator[Executor]:
    with closing(get_backend("mlx").open(export(Q4_K_M, MMPROJ), LimitsConfig())) as executor:
        executor.allocate(CELLS)
        yield executor


class TestMlxImages(ImageConformance):
    tower = 1e-4
    through_text = 0.01
    consistency = 1e-5

    @pytest.fixture
    def executor(self, opened: Executor) -> Executor:
        return opened
