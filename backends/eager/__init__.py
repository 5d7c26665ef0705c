"""The eager backend: a GGUF file in float32 PyTorch, the reference other backends are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrai_cli.errors import InvalidInputError
from backends.base import Backend, Executor, Progress
from backends.eager.executor import EagerExecutor


class EagerBackend:
    """Runs GGUF files as they are."""

    name = "eager"
    runs_model_files = True

    def unavailable(self) -> str | None:
        return None

    def build(self, progress: Progress) -> Path | None:
        return None

    def export(self, source: Path, target: Path, options: Any, progress: Progress) -> None:
        raise InvalidInputError(
            f"the eager backend runs {source.name} itself; it has nothing to export",
            param="backend",
        )

    def open(self, source: Path, options: Any) -> Executor:
        """Open a GGUF file. Raises ModelFileError."""
        return EagerExecutor(source, options)


backend: Backend = EagerBackend()
