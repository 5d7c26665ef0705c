"""The backends there are, by name; and what a machine takes where none is named."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel

from astrai_cli.errors import BackendUnavailableError, InvalidInputError, install_command
from backends.base import Backend

OWN_OPTIONS = frozenset(
    {"activation_dtype", "device", "draft_gguf", "format", "forward_sizes", "kv_dtype", "logits"}
)
"""Options of the export and limits groups that only some backends take."""

ENTRY_POINT_GROUP = "astrai.backends"
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def backend_names() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def default_backend() -> str:
    """The best one for this machine, whether or not its packages are installed.

    An NVIDIA GPU counts where PyTorch is there in a build that runs on it.
    """
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mlx"
    return "cuda" if _NVIDIA_DRIVER.exists() and _torch_has_cuda() else "cpu"


def _torch_has_cuda() -> bool:
    """Without importing it, which takes seconds."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    return any((Path(torch.origin).parent / "lib").glob("*torch_cuda*"))


def get_backend(name: str) -> Backend:
    """The backend called `name`, imported only now.

    Raises BackendUnavailableError where there is none or its packages are missing.
    """
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            try:
                backend: Backend = entry.load()
            except ImportError as error:
                raise missing_package(name, error.name) from error
            return backend
    known = ", ".join(backend_names())
    raise BackendUnavailableError(f"no backend called {name!r}; there are: {known}")


def check_options(backend: Backend, options: BaseModel) -> None:
    """Raises InvalidInputError for one of OWN_OPTIONS that was set and the backend lacks."""
    defaults = type(options)()
    for name in sorted(OWN_OPTIONS - backend.own_options):
        if getattr(options, name, None) != getattr(defaults, name, None):
            raise InvalidInputError(f"the {backend.name} backend takes no {name}", param=name)


def missing_package(backend: str, package: str | None) -> BackendUnavailableError:
    """What to raise where `backend` needs a package that cannot be imported."""
    return BackendUnavailableError(
        f"backend {backend!r} needs the package {package!r}: {install_command(backend)}"
    )
