"""Block drafts on the cpu backend, whose artifact is in astrai's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draft_suite import DraftSuite, OpenEngine
from muse_fixtures import CHAT_DRAFT, DRAFT

from astrai_cli import load
from astrai_cli.artifact import Artifact
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.errors import ArtifactError, InvalidInputError


class TestCpuDrafts(DraftSuite):
    # The weights are int8.
    least_margin = 0.03
    # Steps give a row the same bits whatever else is in them.
    rounding = 0
    n_talks = 7

    @pytest.fixture(scope="class")
    @classmethod
    def open_engine(cls, drafting_artifact: Artifact) -> OpenEngine:
        def open_(**limits: Any) -> InferenceEngine:
            options: dict[str, Any] = {"kv_dtype": "float32", "threads": 1, **limits}
            return load(drafting_artifact.path, max_context=1024, page_size=8, **options)

        return open_


def test_the_manifest_tells_the_largest_block(drafting_artifact: Artifact) -> None:
    draft = drafting_artifact.manifest.draft
    assert draft is not None
    assert draft.spec.max_block == 8
    assert draft.source.name == CHAT_DRAFT.name


def test_another_draft_is_refused(drafting_artifact: Artifact) -> None:
    with pytest.raises(InvalidInputError, match="a draft that is not dflash-tiny-muse-bf16"):
        load(drafting_artifact.path, draft_gguf=DRAFT, dflash=True)


def test_an_artifact_without_a_draft_is_refused_with_the_command(
    smollm2_artifact: Path,
) -> None:
    with pytest.raises(ArtifactError, match=r"astrai export MODEL --backend cpu --draft-gguf FILE"):
        load(smollm2_artifact, dflash=True)
