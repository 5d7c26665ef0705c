"""Block drafts on the float32 reference."""

from __future__ import annotations

from typing import Any

import pytest
from draft_numbers import EagerNumbers, OpenDrafting, open_eager
from draft_suite import DraftSuite, OpenEngine
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL

from astrai_cli import load
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.errors import InvalidInputError


class TestEagerDrafts(DraftSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def open_engine(cls) -> OpenEngine:
        def open_(**limits: Any) -> InferenceEngine:
            return load(
                CHAT_MODEL,
                backend="eager",
                mmproj=CHAT_MMPROJ,
                draft_gguf=CHAT_DRAFT,
                threads=1,
                max_context=1024,
                page_size=8,
                **limits,
            )

        return open_


class TestEagerNumbers(EagerNumbers):
    @pytest.fixture(scope="class")
    @classmethod
    def open_drafting(cls) -> OpenDrafting:
        return open_eager


def test_dflash_without_a_draft_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="name one with --draft-gguf"):
        load(CHAT_MODEL, backend="eager", dflash=True)
