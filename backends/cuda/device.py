"""Which device runs, and what memory it has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from astrai_cli.errors import BackendUnavailableError, InvalidInputError

log = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """The device of the option `device`. Raises BackendUnavailableError."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        built = torch.version.cuda
        why = f"PyTorch for CUDA {built} finds no GPU" if built else "this PyTorch is without CUDA"
        raise BackendUnavailableError(
            f"device is cuda, but {why}; --device cpu runs without, slowly"
        )
    if name == "auto" and not has_gpu:
        log.warning("no GPU: the cuda backend runs on the processor, slowly")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def device_name(device: torch.device) -> str:
    """The GPU's, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def naming_memory(device: torch.device, what: str) -> Iterator[None]:
    """Raises InvalidInputError, with the numbers, where the device has no memory for it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InvalidInputError(f"no memory for {what}{free_memory(device)}") from error
    except RuntimeError as error:
        # What the processor's allocator raises has no type of its own.
        if "alloc" not in str(error):
            raise
        raise InvalidInputError(f"no memory for {what}") from error


def free_memory(device: torch.device) -> str:
    """What a GPU has left, after what PyTorch kept for reuse is given back; as a clause."""
    if device.type != "cuda":
        return ""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return f": {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free"
