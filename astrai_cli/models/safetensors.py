"""Safetensors files: memory-mapped, checked when opened, read one tensor at a time.

The format: eight bytes with the header's length, the header as JSON (name to dtype,
shape and data_offsets), then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError

MAX_HEADER_BYTES = 2**26
MAX_DIMENSIONS = 8
FLOATS = ("F32", "F16", "BF16")
# bfloat16 is read as the upper halves of float32.
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I8": "i1"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """kind: one of FLOATS, "U8" or "I8". offset: of its first byte in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.n_values * np.dtype(_TYPES[self.kind]).itemsize


class SafetensorsFile:
    """An open file. Close it; arrays that were read stay valid."""

    tensors: Mapping[str, StoredTensor]

    def __init__(self, path: Path, kinds: Collection[str] = FLOATS) -> None:
        """Map the file and check its header; kinds: of the tensors it may have.

        Raises ModelFileError.
        """
        self.path = path
        self._kinds = kinds
        self._file = _map(path)
        try:
            self.tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def read(self, name: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The tensor, or only these rows of it, as float32 of the caller's own."""
        values = self._view(name)
        chosen = values if rows is None else values[rows]
        if self.tensors[name].kind == "BF16":
            return (chosen.astype(np.uint32) << 16).view(np.float32)
        return chosen.astype(np.float32)

    def read_stored(self, name: str) -> NDArray[Any]:
        """The tensor as it is stored, bfloat16 as uint16; the caller's own."""
        return self._view(name).copy()

    def close(self) -> None:
        self._file.close()

    def _view(self, name: str) -> NDArray[Any]:
        tensor = self.tensors[name]
        stored = np.frombuffer(self._file, _TYPES[tensor.kind], tensor.n_values, tensor.offset)
        return stored.reshape(tensor.shape)

    def _read_header(self) -> dict[str, StoredTensor]:
        length = int.from_bytes(self._file[:8], "little")
        if len(self._file) < 8 or length > min(len(self._file) - 8, MAX_HEADER_BYTES):
            raise self._error("its header is longer than the file or the bound allows")
        try:
            header = json.loads(self._file[8 : 8 + length])
        except (ValueError, RecursionError):
            raise self._error("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._error("its header is not an object")
        header.pop("__metadata__", None)
        return {name: self._tensor(name, entry, 8 + length) for name, entry in header.items()}

    def _tensor(self, name: str, entry: Any, data: int) -> StoredTensor:
        shown = repr(name[:80])
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        kind, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(kind, str) or kind not in self._kinds:
            allowed = ", ".join(self._kinds)
            raise self._error(f"tensor {shown} is {str(kind)[:20]}, must be {allowed}")
        if not (_are_sizes(shape, MAX_DIMENSIONS) and _are_sizes(offsets, 2) and len(offsets) == 2):
            raise self._error(f"tensor {shown} has no shape or place")
        tensor = StoredTensor(kind, tuple(shape), data + offsets[0])
        n_bytes = offsets[1] - offsets[0]
        if n_bytes != tensor.n_bytes or tensor.offset + n_bytes > len(self._file):
            raise self._error(f"tensor {shown} does not lie in the file")
        return tensor

    def _error(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: not a safetensors file: {what}")


def _are_sizes(values: Any, most: int) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= most
        and all(type(value) is int and 0 <= value < 2**62 for value in values)
    )


def _map(path: Path) -> mmap:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size < 8:
            raise ModelFileError(f"{path}: not a safetensors file")
        with path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error
