"""The mlx backend: model folders of mlx-lm, on Apple Silicon, or on Linux for tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from astrai_cli.errors import ArtifactError, BackendUnavailableError, install_command
from backends.base import Backend, Executor, Progress
from backends.registry import missing_package


class MlxBackend:
    """Exports model files as folders that mlx-lm loads too, and runs them."""

    name = "mlx"
    runs_model_files = False
    own_options = frozenset({"activation_dtype", "draft_gguf", "format"})

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
        """Write the folder, or the program. Raises ModelFileError, InvalidInputError.

        A folder needs no package of MLX and can be made on any machine; a program raises
        BackendUnavailableError where the installed executorch cannot lower it.
        """
        if options.format == "pte":
            try:
                from backends.mlx.program import export_program
            except ImportError as error:
                raise BackendUnavailableError(
                    "--format pte needs executorch with its MLX partitioner, which the packages "
                    f"for macOS have: {install_command('cpu')} there ({error})"
                ) from error
            return export_program(source, target, options, progress)
        from backends.mlx.export import export_model

        return export_model(source, target, options, progress)

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder. Raises ArtifactError, BackendUnavailableError."""
        from astrai_cli.artifact import Artifact

        try:
            from backends.mlx.executor import MlxExecutor
        except ImportError as error:
            raise missing_package(self.name, error.name) from error
        artifact = Artifact.open(source)
        if "program" in artifact.manifest.details:
            raise ArtifactError(
                f"{source} is a program for apps, made with --format pte; "
                "export the model without it to run it here"
            )
        return MlxExecutor(artifact, options)


backend: Backend = MlxBackend()
