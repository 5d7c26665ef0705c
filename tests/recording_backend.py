"""A backend whose exports take no time, where the real ones take minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.base import Progress
from backends.registry import OWN_OPTIONS


class RecordingBackend:
    """Writes one small file and counts its exports; `fail` is raised half-way through."""

    name = "recording"
    own_options = OWN_OPTIONS

    def __init__(self) -> None:
        self.exports = 0
        self.fail: BaseException | None = None

    def export(
        self, source: Path, target: Path, options: Any, progress: Progress
    ) -> Mapping[str, Any]:
        self.exports += 1
        (target / "weights").mkdir()
        (target / "weights" / "model.bin").write_bytes(source.read_bytes()[:100])
        if self.fail is not None:
            raise self.fail
        progress("exporting", 1.0)
        return {"methods": ["forward"]}
