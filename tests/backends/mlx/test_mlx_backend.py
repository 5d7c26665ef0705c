"""How the mlx backend is chosen, and what its options say."""

from __future__ import annotations

import logging
import platform
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from astrai_cli.artifact import Artifact, export_model
from astrai_cli.config import ExportConfig, LimitsConfig
from astrai_cli.errors import ArtifactError, BackendUnavailableError
from backends.registry import default_backend, get_backend


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
        f"backend 'mlx' needs the package '{package}': pip install '.[mlx]' in astrai's checkout"
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


def can_lower() -> bool:
    """Whether the installed executorch has all of its MLX partitioner."""
    try:
        import_module("executorch.backends.mlx.partitioner")
    except ImportError:
        return False
    return True


@pytest.mark.skipif(can_lower(), reason="this executorch can lower for MLX")
def test_where_no_program_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"--format pte needs executorch .*MLX"):
        export_program(tmp_path)


@pytest.mark.skipif(not can_lower(), reason="this executorch cannot lower for MLX")
def test_a_program_for_apps(tmp_path: Path) -> None:
    artifact = export_program(tmp_path)
    assert artifact.manifest.details["methods"] == ["forward"]
    assert artifact.manifest.files["model.pte"].size > 0
    with pytest.raises(ArtifactError, match="made with --format pte"):
        get_backend("mlx").open(artifact.path, LimitsConfig())


def export_program(folder: Path) -> Artifact:
    source = tiny_gguf(folder, type="Q4_1")
    options = ExportConfig(format="pte")
    return export_model(source, folder / "out", "mlx", options, lambda what, done: None)
