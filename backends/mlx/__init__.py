"""The mlx backend: model folders of mlx-lm, on Apple Silicon, or on Linux for tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backends.base import Backend, Executor, Progress, missing_package


class MlxBackend:
    """Exports model files as folders that mlx-lm loads too, and runs them."""

    name = "mlx"
    runs_model_files = False

    def unavailable(self) -> str | None:
        for package in ("mlx", "mlx_lm"):
            if find_spec(package) is None:
                return str(missing_package(self.name, package))
        return None

    def build(self, progress: Progress) -> Path | None:
        return None

    def export(
        self, source: Path, target: Path, options: Any, progress: Progress
    ) -> dict[str, Any]:
        """Write the folder. Raises ModelFileError, InvalidInputError.

        Needs no package of MLX: a folder can be made on any machine.
        """
        from backends.mlx.export import export_model

        return export_model(source, target, options, progress)

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder. Raises ArtifactError, BackendUnavailableError."""
        from astrai_cli.artifact import Artifact

        try:
            from backends.mlx.executor import MlxExecutor
        except ImportError as error:
            raise missing_package(self.name, error.name) from error
        return MlxExecutor(Artifact.open(source), options)


backend: Backend = MlxBackend()
