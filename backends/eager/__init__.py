"""The eager backend: a GGUF file in float32 PyTorch, the reference other backends are held to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from astrai_cli.errors import InvalidInputError
from backends.base import Backend, Executor, Progress
from backends.registry import missing_package


class EagerBackend:
    """Runs GGUF files as they are."""

    name = "eager"
    runs_model_files = True
    own_options = frozenset({"draft_gguf", "kv_dtype"})

    def unavailable(self) -> str | None:
        return None if find_spec("torch") else str(missing_package(self.name, "torch"))

    def build(self, progress: Progress) -> Path | None:
        return None

    def export(self, source: Path, target: Path, options: Any, progress: Progress) -> None:
        raise InvalidInputError(
            f"the eager backend runs {source.name} itself; it has nothing to export",
            param="backend",
        )

    def open(self, source: Path, options: Any) -> Executor:
        """Open a GGUF file. Raises ModelFileError."""
        # PyTorch takes seconds to import, and only the process that runs the model needs it.
        from backends.eager.executor import EagerExecutor

        return EagerExecutor(source, options)


backend: Backend = EagerBackend()
