"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from muse_fixtures import CHAT_MMPROJ, CHAT_MODEL
from recording_backend import RecordingBackend
from server_process import ServerProcess, running_server

from astrai_cli.config import ExportConfig, default_cache_dir
from astrai_cli.models.pull import pull
from astrai_cli.models.resolve import resolve_artifact
from backends.registry import get_backend


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Astrai's own, so that what is pulled and exported once serves later runs too."""
    configured = os.environ.get("ASTRAI_CACHE_DIR")
    return Path(configured) if configured else default_cache_dir()


@pytest.fixture(scope="session")
def smollm2_gguf(cache_dir: Path) -> Path:
    """The real SmolLM2-135M-Instruct, from astrai's cache; pulled when it is not there."""
    return pull("smollm2-135m", cache_dir, lambda what, fraction: None)


@pytest.fixture(scope="session")
def smollm2_artifact(smollm2_gguf: Path, cache_dir: Path) -> Path:
    """SmolLM2 for the cpu backend, from astrai's cache; exported when it is not there."""
    if reason := get_backend("cpu").unavailable():
        pytest.skip(reason)
    artifact = resolve_artifact(
        str(smollm2_gguf), cache_dir, "cpu", ExportConfig(), lambda what, fraction: None
    )
    return artifact.path


@pytest.fixture(scope="session")
def muse_server() -> Iterator[ServerProcess]:
    """A small trained Muse Glimmer that reasons, calls tools and sees, behind a real server."""
    limits = {"mmproj": str(CHAT_MMPROJ), "max_context": 1024}
    with running_server(CHAT_MODEL, tool_parser="atem", limits=limits) as running:
        yield running


@pytest.fixture
def recording_backend(monkeypatch: pytest.MonkeyPatch) -> RecordingBackend:
    """What every name of a backend stands for while artifacts are written."""
    recording = RecordingBackend()
    monkeypatch.setattr("astrai_cli.artifact.get_backend", lambda name: recording)
    return recording
