"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording_backend import RecordingBackend

from astrai_cli.config import default_cache_dir
from astrai_cli.models.pull import pull


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct, from astrai's cache; pulled when it is not there."""
    configured = os.environ.get("ASTRAI_CACHE_DIR")
    cache_dir = Path(configured) if configured else default_cache_dir()
    return pull("smollm2-135m", cache_dir, lambda what, fraction: None)


@pytest.fixture
def recording_backend(monkeypatch: pytest.MonkeyPatch) -> RecordingBackend:
    """What every name of a backend stands for while artifacts are written."""
    recording = RecordingBackend()
    monkeypatch.setattr("astrai_cli.artifact.get_backend", lambda name: recording)
    return recording
