"""GGUF files: memory-mapped, checked when opened, read one tensor at a time."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from functools import cache, cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Self

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from astrai_cli.closing import Closing
from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import (
    ROPE_FACTORS,
    architecture_of,
    check_tensors,
    current_name,
    read_spec,
)
from astrai_cli.models.gguf_header import TensorInfo, read_header
from astrai_cli.models.metadata import Metadata
from astrai_cli.models.spec import ModelSpec

MAX_ROPE_FACTORS = 512


class GGUFFile(Closing):
    """A GGUF file of any kind: metadata and tensors. Close it, or use it in a `with`."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _map(path)
        try:
            values, self.tensors = read_header(self._file, str(path))
            self.metadata = Metadata(values, self._file, str(path))
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file and check it. Raises ModelFileError."""
        return cls(path)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the whole file."""
        return hashlib.sha256(self._file).hexdigest()

    def tensor(self, name: str) -> TensorInfo:
        """Raises ModelFileError where the file has no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing") from None

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor, uint8 [rows, bytes a row]: a read-only view.

        A row is the last dimension; a vector has one. The view must not outlive the file.
        """
        tensor = self.tensor(name)
        n_rows = tensor.n_values // tensor.shape[-1]
        flat = np.frombuffer(self._file, np.uint8, tensor.n_bytes, tensor.offset)
        return flat.reshape(n_rows, -1)

    def finite(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32, in its shape.

        Raises ModelFileError for an unknown name and for values that are not finite.
        """
        tensor = self.tensor(name)
        values = to_float32(self.blocks(name), tensor.type).reshape(tensor.shape)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: tensor {name!r} holds values not finite")
        return values

    def close(self) -> None:
        try:
            self._file.close()
        except BufferError:
            # Somebody still holds a view: the mapping goes when the last view does.
            return


class ModelFile(GGUFFile):
    """A GGUF file of a decoder that astrai runs: its tensors are exactly those of its spec."""

    spec: ModelSpec

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.spec = self._read_spec()
        except BaseException:
            self.close()
            raise

    def _read_spec(self) -> ModelSpec:
        architecture_of(self.metadata)
        self.tensors = self._current_names()
        for tensor in self.tensors.values():
            if not can_dequantize(tensor.type):
                raise ModelFileError(
                    f"{self.path}: tensor {tensor.name!r} is stored as {tensor.type.name}, "
                    "which cannot be read"
                )
        spec = read_spec(self.metadata, self.tensors, self._rope_factors(), self.path.stem)
        check_tensors(spec, self.tensors, str(self.path))
        return spec

    def _current_names(self) -> Mapping[str, TensorInfo]:
        named: dict[str, TensorInfo] = {}
        for name, tensor in self.tensors.items():
            current = current_name(name)
            if current in named or (current != name and current in self.tensors):
                raise ModelFileError(f"{self.path}: tensor {name!r} is also there as {current!r}")
            named[current] = tensor
        return named

    def _rope_factors(self) -> tuple[float, ...] | None:
        if ROPE_FACTORS not in self.tensors:
            return None
        tensor = self.tensors[ROPE_FACTORS]
        if len(tensor.shape) != 1 or tensor.shape[0] > MAX_ROPE_FACTORS:
            raise ModelFileError(
                f"{self.path}: tensor {ROPE_FACTORS!r} has the shape {list(tensor.shape)}, "
                f"must be a vector of at most {MAX_ROPE_FACTORS}"
            )
        factors = to_float32(self.blocks(ROPE_FACTORS), tensor.type)[0]
        if not np.all(np.isfinite(factors) & (factors > 0)):
            raise ModelFileError(
                f"{self.path}: tensor {ROPE_FACTORS!r} holds factors that are not positive numbers"
            )
        return tuple(factors.tolist())


def to_float32(blocks: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Dequantize rows of stored bytes, uint8 [rows, bytes a row], to float32 [rows, columns].

    The result is the caller's own: never a view of the file.
    """
    with np.errstate(all="ignore"):
        values = np.asarray(dequantize(blocks, kind), dtype=np.float32)
    return values.copy() if np.may_share_memory(values, blocks) else values


@cache
def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether the installed `gguf` package can turn this type into float32."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _map(path: Path) -> mmap:
    try:
        # Looked at before it is opened: opening a pipe would wait for a writer.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path}: not a file")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: not a GGUF file: it is empty")
        with path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{path}: {reason}") from error
