"""What the tests of the cpu backend share: its library, and exports made once a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import models
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL

from astrai_cli.artifact import Artifact, export_model
from astrai_cli.config import ExportConfig
from astrai_cli.errors import BackendUnavailableError
from astrai_cli.models.resolve import resolve_artifact
from backends.cpu.build import build_library
from backends.registry import get_backend

__all__ = ["models"]

# PyTorch describes each step of an export to this logger if anyone listens, and pytest does
# to those that do not propagate.
torch._logging._internal.trace_log.propagate = True
# What tests export is too small for more.
torch.set_num_threads(1)

Export = Callable[..., Path]
"""export(model, mmproj=None, **options) -> the artifact's folder."""


def silent(what: str, fraction: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="session")
def native_library() -> Path:
    """The compiled library, from astrai's cache; built when it is not there."""
    try:
        return build_library(silent)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, native_library: Path) -> Export:
    """Exports a model file for the cpu backend the first time it is asked to."""
    folder = tmp_path_factory.mktemp("artifacts")

    @cache
    def export_once(source: Path, mmproj: Path | None, options: frozenset[Any]) -> Path:
        target = folder / str(len(list(folder.iterdir())))
        config = ExportConfig.model_validate({"mmproj": mmproj, **dict(options)})
        return export_model(source, target, "cpu", config, silent).path

    assert get_backend("cpu").unavailable() is None
    return lambda source, mmproj=None, **options: export_once(
        source, mmproj, frozenset(options.items())
    )


@pytest.fixture(scope="session")
def drafting_artifact(cache_dir: Path, native_library: Path) -> Artifact:
    """The trained model with its tower and draft, int8, from astrai's cache."""
    options = ExportConfig(mmproj=CHAT_MMPROJ, draft_gguf=CHAT_DRAFT)
    return resolve_artifact(str(CHAT_MODEL), cache_dir, "cpu", options, silent)
