"""Block drafts on the cuda backend, on the processor."""

from __future__ import annotations

from typing import Any

import pytest
from draft_suite import DraftSuite, OpenEngine
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL

from astrai_cli import load
from astrai_cli.engine.engine import InferenceEngine


class TestCudaDrafts(DraftSuite):
    every = 5

    @pytest.fixture(scope="class")
    @classmethod
    def open_engine(cls, export: Any) -> OpenEngine:
        folder = export(CHAT_MODEL, CHAT_MMPROJ, draft_gguf=CHAT_DRAFT)

        def open_(**limits: Any) -> InferenceEngine:
            return load(folder, device="cpu", threads=1, max_context=1024, page_size=8, **limits)

        return open_
