"""The cpu backend: ExecuTorch programs with the XNNPACK delegate, on any processor."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astrai_cli.errors import BackendUnavailableError
from backends.base import Backend, Executor, Progress
from backends.cpu.build import build_library, find_compiler, library_path
from backends.registry import missing_package


class CpuBackend:
    """Exports GGUF files to int8 or float32 programs and runs them."""

    name = "cpu"
    runs_model_files = False
    own_options = frozenset({"activation_dtype", "draft_gguf", "kv_dtype"})

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
        """Write `model.pte`.

        Raises InvalidInputError, ModelFileError, BackendUnavailableError, ExecutionError.
        """
        # PyTorch and the lowering tools take seconds to import, and running needs neither.
        with _quiet_tools():
            try:
                from backends.cpu.export import export_program
            except ImportError as error:
                raise missing_package(self.name, error.name) from error
            return export_program(source, target, options, progress)

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder, after building the library where that was not done.

        Raises ArtifactError, BackendUnavailableError.
        """
        from astrai_cli.artifact import Artifact
        from backends.cpu.executor import CpuExecutor

        # ExecuTorch trusts a program's bytes: altered ones could end the process.
        artifact = Artifact.open(source, verify=True)
        return CpuExecutor(build_library(lambda _what, _done: None), artifact, options)


@contextmanager
def _quiet_tools() -> Iterator[None]:
    """Hides what the lowering tools say of deprecations and GPU libraries of their own."""
    for name in ("torch.utils._pytree", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


backend: Backend = CpuBackend()
