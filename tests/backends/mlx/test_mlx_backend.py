"""How the mlx backend is chosen, and what its options say."""

from __future__ import annotations

import logging
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig
from backends.base import default_backend, get_backend


@pytest.mark.parametrize(
    ("system", "machine", "chosen"),
    [("darwin", "arm64", "mlx"), ("darwin", "x86_64", "cpu"), ("linux", "aarch64", "cpu")],
)
def test_the_default_of_a_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, chosen: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert default_backend() == chosen


@pytest.mark.parametrize("package", ["mlx", "mlx_lm"])
def test_what_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    backend = get_backend("mlx")
    assert backend.unavailable() is None
    monkeypatch.setattr(
        "backends.mlx.find_spec", lambda name: None if name == package else find_spec(name)
    )
    assert backend.unavailable() == (
        f"backend 'mlx' needs the package '{package}': pip install 'astrai[mlx]'"
    )


def test_there_is_nothing_to_build() -> None:
    assert get_backend("mlx").build(lambda what, done: None) is None


def test_a_sequence_length_is_ignored_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And before anything is read: the file is none."""
    source = tmp_path / "none.gguf"
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match=r"none\.gguf"):
        export_model(
            source, tmp_path / "a", "mlx", ExportConfig(max_seq_len=64), lambda what, done: None
        )
    assert "--max-seq-len 64 is ignored" in caplog.text
    source = tiny_gguf(tmp_path, context_length=300)
    options = ExportConfig(max_seq_len=64)
    artifact = export_model(source, tmp_path / "b", "mlx", options, lambda what, done: None)
    assert artifact.manifest.limits.max_context == 300
