"""A bounded reader of the GGUF header: metadata and tensor directory, nothing else.

The `gguf` package's own reader trusts the counts and lengths it finds; this one
checks each against the file and a limit before using it, so that a hostile file
costs neither memory nor time. Arrays stay in the file until they are asked for.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version,
tensor count, key count, the keys, the tensor directory, padding, tensor data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**26
MAX_STRING_BYTES = 2**24
MAX_NAME_BYTES = 2**16 - 1
MAX_COUNT = 2**16
MAX_ARRAY_LENGTH = 2**22
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 2**16

_SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}
_LENGTH = struct.Struct("<Q")
_ITEM_BYTES = {kind: np.dtype(code).itemsize for kind, code in _SCALARS.items()}


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that is still in the file: `length` items of `kind` from byte `offset`."""

    kind: GGUFValueType
    length: int
    offset: int


Value = bool | int | float | str | ArrayRef


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place in the file.

    shape: outermost first, as PyTorch and NumPy count; a matrix is [rows, columns].
    offset: bytes from the start of the file.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int

    @property
    def n_values(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class Cursor:
    """A position in the mapped file that cannot leave it, or the header's limit."""

    def __init__(self, file: mmap, label: str, offset: int = 0) -> None:
        self._file = file
        self._label = label
        self._end = len(file)
        self.offset = offset

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self._label}: {message}")

    def skip(self, n_bytes: int, what: str) -> int:
        """Move over `n_bytes`, returning where they begin."""
        start = self.offset
        if n_bytes > self._end - start:
            raise self.error(
                f"truncated: {what} at byte {start} needs {n_bytes} bytes, "
                f"the file ends at byte {self._end}"
            )
        if start + n_bytes > MAX_HEADER_BYTES:
            raise self.error(f"{what} at byte {start} passes the limit of {MAX_HEADER_BYTES} bytes")
        self.offset = start + n_bytes
        return start

    def unsigned(self, n_bytes: int, what: str, limit: int | None = None) -> int:
        start = self.skip(n_bytes, what)
        value = int.from_bytes(self._file[start : self.offset], "little")
        if limit is not None and value > limit:
            raise self.error(f"{what} is {value}, must be at most {limit}")
        return value

    def text(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self.unsigned(8, f"length of {what}", limit)
        start = self.skip(length, what)
        try:
            return self._file[start : self.offset].decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} at byte {start} is not UTF-8") from None

    def skip_texts(self, count: int, what: str) -> None:
        """Move over `count` strings; kept tight, as vocabularies have hundreds of thousands."""
        last = min(self._end, MAX_HEADER_BYTES) - _LENGTH.size
        offset = self.offset
        for _ in range(count):
            if offset > last:
                break
            offset += _LENGTH.size + _LENGTH.unpack_from(self._file, offset)[0]
        else:
            self.skip(offset - self.offset, what)
            return
        # Refused here: there is no room for the next length.
        self.skip(offset + _LENGTH.size - self.offset, what)

    def scalars(self, kind: GGUFValueType, length: int, what: str) -> NDArray[Any]:
        start = self.skip(length * _ITEM_BYTES[kind], what)
        return np.frombuffer(self._file[start : self.offset], dtype=_SCALARS[kind])

    def value(self, what: str) -> Value:
        kind = self._kind(what)
        if kind is GGUFValueType.STRING:
            return self.text(what)
        if kind is GGUFValueType.ARRAY:
            return self._array(what)
        scalar: bool | int | float = self.scalars(kind, 1, what)[0].item()
        return scalar

    def _kind(self, what: str) -> GGUFValueType:
        raw = self.unsigned(4, f"type of {what}")
        try:
            return GGUFValueType(raw)
        except ValueError:
            raise self.error(f"{what} has the unknown type {raw}") from None

    def _array(self, what: str) -> ArrayRef:
        kind = self._kind(f"an item of {what}")
        length = self.unsigned(8, f"length of {what}", MAX_ARRAY_LENGTH)
        array = ArrayRef(kind, length, self.offset)
        if kind is GGUFValueType.ARRAY:
            raise self.error(f"{what} is an array of arrays, which is not supported")
        if kind is GGUFValueType.STRING:
            self.skip_texts(length, what)
        else:
            self.skip(length * _ITEM_BYTES[kind], what)
        return array


def read_header(file: mmap, label: str) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
    """Metadata and tensor directory of a mapped GGUF file; `label` begins each error.

    Raises ModelFileError for anything that is not a whole, consistent GGUF file.
    """
    cursor = Cursor(file, label)
    if file[:4] != MAGIC:
        raise cursor.error("not a GGUF file: it does not begin with 'GGUF'")
    cursor.skip(4, "magic")
    version = cursor.unsigned(4, "version")
    if version not in VERSIONS:
        big_endian = version.to_bytes(4, "little")[:2] == b"\0\0" and version != 0
        kind = "a big-endian GGUF file" if big_endian else f"GGUF version {version}"
        raise cursor.error(f"{kind} is not supported, only little-endian versions 2 and 3")
    n_tensors = cursor.unsigned(8, "tensor count", MAX_COUNT)
    n_keys = cursor.unsigned(8, "key count", MAX_COUNT)
    metadata = dict(_read_metadata(cursor, n_keys))
    directory = list(_read_directory(cursor, n_tensors))
    alignment = metadata.get("general.alignment", 32)
    if (
        type(alignment) is not int
        or not 0 < alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise cursor.error(
            f"general.alignment is {alignment}, must be a power of two up to {MAX_ALIGNMENT}"
        )
    data_start = cursor.offset + -cursor.offset % alignment
    return metadata, _place_tensors(directory, data_start, alignment, len(file), cursor)


def _read_metadata(cursor: Cursor, n_keys: int) -> Iterator[tuple[str, Value]]:
    seen: set[str] = set()
    for _ in range(n_keys):
        key = cursor.text("a metadata key", MAX_NAME_BYTES)
        if key in seen:
            raise cursor.error(f"metadata key {key!r} appears twice")
        seen.add(key)
        yield key, cursor.value(f"metadata key {key!r}")


def _read_directory(cursor: Cursor, n_tensors: int) -> Iterator[TensorInfo]:
    """The tensors as the file lists them; offsets still count from the data's start."""
    for _ in range(n_tensors):
        name = cursor.text("a tensor name", MAX_NAME_BYTES)
        what = f"tensor {name!r}"
        n_dimensions = cursor.unsigned(4, f"dimension count of {what}", MAX_DIMENSIONS)
        if n_dimensions == 0:
            raise cursor.error(f"{what} has no dimensions")
        shape = tuple(cursor.unsigned(8, f"a dimension of {what}") for _ in range(n_dimensions))[
            ::-1
        ]
        raw_type = cursor.unsigned(4, f"type of {what}")
        try:
            kind = GGMLQuantizationType(raw_type)
        except ValueError:
            raise cursor.error(f"{what} has the unknown type {raw_type}") from None
        yield TensorInfo(name, kind, shape, cursor.unsigned(8, f"offset of {what}"), 0)


def _place_tensors(
    directory: list[TensorInfo], data_start: int, alignment: int, file_bytes: int, cursor: Cursor
) -> dict[str, TensorInfo]:
    """Sizes and absolute offsets, each tensor inside the file and apart from the others."""
    placed: dict[str, TensorInfo] = {}
    for tensor in directory:
        what = f"tensor {tensor.name!r}"
        if tensor.name in placed:
            raise cursor.error(f"{what} appears twice")
        n_bytes = _tensor_bytes(tensor, what, cursor)
        if tensor.offset % alignment:
            raise cursor.error(f"{what} is at {tensor.offset}, not a multiple of {alignment}")
        start = data_start + tensor.offset
        if start + n_bytes > file_bytes:
            raise cursor.error(
                f"truncated: {what} needs {n_bytes} bytes at byte {start}, "
                f"the file ends at byte {file_bytes}"
            )
        placed[tensor.name] = TensorInfo(tensor.name, tensor.type, tensor.shape, start, n_bytes)
    in_order = sorted(placed.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.n_bytes > after.offset:
            raise cursor.error(f"tensors {before.name!r} and {after.name!r} overlap")
    return placed


def _tensor_bytes(tensor: TensorInfo, what: str, cursor: Cursor) -> int:
    block_values, block_bytes = GGML_QUANT_SIZES[tensor.type]
    if min(tensor.shape) == 0 or tensor.shape[-1] % block_values:
        raise cursor.error(
            f"{what} has the shape {list(tensor.shape)}, of which {tensor.type.name} needs "
            f"positive sizes and the last a multiple of {block_values}"
        )
    n_bytes = block_bytes
    for size in (*tensor.shape[:-1], tensor.shape[-1] // block_values):
        n_bytes *= size
    return n_bytes
