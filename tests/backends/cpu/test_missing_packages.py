"""What an installation without the cpu extra says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from astrai_cli.config import ExportConfig
from astrai_cli.errors import BackendUnavailableError
from backends.registry import get_backend


def test_export_names_the_package_and_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "backends.cpu.export", raising=False)
    # None in the place of a module makes importing it fail.
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendUnavailableError, match=r"'torch'.*'\.\[cpu\]'"):
        get_backend("cpu").export(tmp_path, tmp_path, ExportConfig(), lambda what, done: None)
