"""Compiles what a GPU runs before a server needs it, and checks that it computes rightly."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from astrai_cli.errors import BackendUnavailableError
from backends.base import Progress
from backends.compiled import compiled_dir
from backends.registry import missing_package

_REPORT_NAME = "build.json"


def use_cache_folder() -> Path:
    """Let compilers keep what they make beside astrai's other files, where none is named."""
    folder = compiled_dir("cuda")
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    return folder


def build_kernels(progress: Progress) -> Path:
    """Compile and check kernels, fused blocks and graphs; the report.

    Raises BackendUnavailableError without a GPU, without Triton, and where one of them
    fails or computes something else than plain PyTorch does.
    """
    folder = use_cache_folder()
    try:
        import torch
    except ImportError as error:
        raise missing_package("cuda", error.name) from error
    from backends.cuda import kernels
    from backends.cuda.device import choose_device, device_name

    device = choose_device("cuda")
    if not kernels.available(device):
        raise missing_package("cuda", "triton")
    report: dict[str, Any] = {
        "device": device_name(device),
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": kernels.version(),
        "checks": run_checks(device, torch.bfloat16, progress),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _REPORT_NAME
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return path


def run_checks(device: Any, dtype: Any, progress: Progress) -> dict[str, dict[str, float]]:
    """The relative error of each of `CHECKS`, and the seconds it took, compilation included.

    Raises BackendUnavailableError for one that fails.
    """
    import torch

    from backends.cuda.checks import CHECKS, MOST_ERROR

    results: dict[str, dict[str, float]] = {}
    for number, (name, check) in enumerate(CHECKS.items()):
        progress(f"compiling and checking {name}", number / len(CHECKS))
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                error = check(device, dtype)
        except Exception as failure:
            # Compilers raise errors of their own.
            raise BackendUnavailableError(f"{name} cannot run: {failure}") from failure
        results[name] = {"error": error, "seconds": time.perf_counter() - started}
        if not error < MOST_ERROR:
            raise BackendUnavailableError(
                f"{name} are wrong on this device: their relative error is {error:.3g}, "
                f"must be below {MOST_ERROR}"
            )
    return results
