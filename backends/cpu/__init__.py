"""The cpu backend: ExecuTorch programs with the XNNPACK delegate, on any processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrai_cli.errors import BackendUnavailableError
from backends.base import Backend, Executor, Progress
from backends.cpu.build import build_library, find_compiler, library_path


class CpuBackend:
    """Exports GGUF files to int8 programs and runs them."""

    name = "cpu"
    runs_model_files = False

    def unavailable(self) -> str | None:
        try:
            if not library_path().is_file():
                find_compiler()
        except BackendUnavailableError as error:
            return str(error)
        return None

    def build(self, progress: Progress) -> Path:
        return build_library(progress)

    def export(
        self, source: Path, target: Path, options: Any, progress: Progress
    ) -> dict[str, Any]:
        """Write `model.pte`. Raises ModelFileError, ExecutionError."""
        # PyTorch and the lowering tools take seconds to import, and running needs neither.
        from backends.cpu.export import export_program

        return export_program(source, target, options, progress)

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder, after building the library where that was not done.

        Raises ArtifactError, BackendUnavailableError.
        """
        from astrai_cli.artifact import Artifact
        from backends.cpu.executor import CpuExecutor

        return CpuExecutor(build_library(lambda _what, _done: None), Artifact.open(source), options)


backend: Backend = CpuBackend()
