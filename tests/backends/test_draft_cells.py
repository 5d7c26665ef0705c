"""Artifacts whose draft was exported for fewer cells than the model may have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from draft_requests import greedy_talks, short_talks
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL

from astrai_cli import load
from astrai_cli.config import ExportConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.manifest import MANIFEST_NAME
from astrai_cli.models.resolve import resolve_artifact
from backends.registry import get_backend

DRAFT_CELLS = 1200
LIMITS: dict[str, Any] = {"max_context": 256, "threads": 1}


@pytest.fixture(scope="module", params=["cpu", "mlx", "cuda"])
def folder(
    request: pytest.FixtureRequest, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An artifact that is such a one by its manifest: nothing else of it would differ."""
    if reason := get_backend(request.param).unavailable():
        pytest.skip(reason)
    # In the others' own number types processors are slow.
    dtype = None if request.param == "cpu" else "float32"
    options = ExportConfig(mmproj=CHAT_MMPROJ, draft_gguf=CHAT_DRAFT, activation_dtype=dtype)
    made = resolve_artifact(
        str(CHAT_MODEL), cache_dir, request.param, options, lambda what, fraction: None
    )
    assert made.manifest.draft is not None
    assert made.manifest.draft.max_cells is None
    folder: Path = tmp_path_factory.mktemp(request.param) / "chat"
    shutil.copytree(made.path, folder)
    manifest = folder / MANIFEST_NAME
    fields = json.loads(manifest.read_bytes())
    fields["draft"]["max_cells"] = DRAFT_CELLS
    manifest.write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {},
            r"8 sequences, .* of 256 cells each, and one for padded writes, need 2049, but the "
            r"block draft was exported for 1200 \(draft_max_cells\)",
        ),
        ({"max_cells": 1201}, "max_cells is 1201, but the block draft was exported for 1200"),
    ],
)
def test_more_cells_are_refused(folder: Path, limits: dict[str, Any], message: str) -> None:
    limits = {"max_decode_sequences": 4 if limits else 8, **limits, **LIMITS}
    with pytest.raises(InvalidInputError, match=message):
        load(folder, dflash=True, **limits)
    with load(folder, **limits) as engine:
        assert engine.info.draft_max_cells is None


def test_as_many_are_not(folder: Path) -> None:
    limits = {"max_decode_sequences": 4, **LIMITS}
    with load(folder, dflash=True, adaptive_drafts=False, max_cells=1200, **limits) as engine:
        assert engine.info.draft_max_cells == DRAFT_CELLS
        assert engine.get_stats()["cells_total"] < DRAFT_CELLS
        engine.generate(short_talks(greedy_talks())[0].request.prompt, max_tokens=8)
        assert engine.get_stats()["drafts"] > 0
