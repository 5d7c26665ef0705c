"""The cuda backend: PyTorch on an NVIDIA GPU, or on the processor for tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backends.base import Backend, Executor, Progress
from backends.registry import missing_package


class CudaBackend:
    """Exports model files with their quantized blocks as they are, and runs them."""

    name = "cuda"
    runs_model_files = False
    own_options = frozenset({"activation_dtype", "device", "draft_gguf", "forward_sizes", "logits"})

    def unavailable(self) -> str | None:
        return None if find_spec("torch") else str(missing_package(self.name, "torch"))

    def build(self, progress: Progress) -> Path | None:
        """Compile and check what the GPU runs; the report. Raises BackendUnavailableError."""
        from backends.cuda.build import build_kernels

        return build_kernels(progress)

    def export(
        self, source: Path, target: Path, options: Any, progress: Progress
    ) -> dict[str, Any]:
        """Write the weights. Raises ModelFileError.

        Needs no PyTorch and no GPU: an artifact can be made on any machine.
        """
        from backends.cuda.export import export_model

        return export_model(source, target, options, progress)

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder. Raises ArtifactError, BackendUnavailableError."""
        from astrai_cli.artifact import Artifact

        try:
            from backends.cuda.executor import CudaExecutor
        except ImportError as error:
            raise missing_package(self.name, error.name) from error
        return CudaExecutor.open(Artifact.open(source), options)


backend: Backend = CudaBackend()
