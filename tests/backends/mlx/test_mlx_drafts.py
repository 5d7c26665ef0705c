"""Block drafts on the mlx backend."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from draft_numbers import DraftNumbers, Floats, OpenDrafting
from draft_suite import DraftSuite, OpenEngine
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL, DRAFT, TINY, distance

from astrai_cli import load
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.models.draft_spec import DraftFile
from backends.artifact_draft import write_draft
from backends.drafting import DraftOwner, DraftStep
from backends.mlx.device import on_device
from backends.mlx.draft import MlxDraft
from backends.numbers import NUMBER_TYPES
from backends.registry import get_backend


class TestMlxDrafts(DraftSuite):
    # On the processor MLX is slow.
    n_talks = 2
    every = 21

    @pytest.fixture(scope="class")
    @classmethod
    def open_engine(cls, export: Any) -> OpenEngine:
        folder = export(CHAT_MODEL, CHAT_MMPROJ, draft_gguf=CHAT_DRAFT)

        def open_(**limits: Any) -> InferenceEngine:
            return load(folder, max_context=1024, page_size=8, **limits)

        return open_


class TestMlxNumbers(DraftNumbers):
    @pytest.fixture(scope="class")
    @classmethod
    def open_drafting(cls, export: Any) -> OpenDrafting:
        limits = LimitsConfig(dflash=True)
        return lambda model, draft: get_backend("mlx").open(export(model, draft_gguf=draft), limits)

    @on_device
    def hidden_and_logits(self, executor: Any, step: DraftStep) -> tuple[Floats, Floats]:
        hidden = executor._draft.hidden(step, executor._model)[0, 1:]
        return np.asarray(hidden), np.asarray(executor._model.head(hidden))


def test_hidden_rows_are_the_reference_s(tmp_path: Path) -> None:
    with DraftFile.open(DRAFT) as file:
        write_draft(file, tmp_path, NUMBER_TYPES["float32"], {})
        spec = file.spec
    draft = MlxDraft(tmp_path, spec, mx.float32)
    draft.allocate(64)
    with np.load(TINY / "draft.npz") as arrays:
        taps, embeddings, hidden = (arrays[name] for name in ("taps", "embeddings", "hidden"))
    seen: list[mx.array] = []

    def head(h: mx.array) -> mx.array:
        seen.append(h)
        return h

    places = mx.arange(len(taps))
    rows = (mx.array(each)[:, None] for each in np.split(taps, len(spec.taps), axis=1))
    target: Any = SimpleNamespace(
        step=SimpleNamespace(positions=places, cells=places),
        tapped=dict(zip(spec.taps, rows, strict=True)),
        embed=lambda tokens: mx.array(embeddings),
        head=head,
    )
    draft.keep(target)
    owner = DraftOwner(0, len(taps), np.zeros(1, dtype=np.int32))
    draft.propose(DraftStep([owner], spec.max_block, page_size=64), target)
    assert distance(np.asarray(seen[0][0]), hidden[1:]) < 1e-5
