"""Writes safetensors files of known layout a few rows at a time, in any order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from astrai_cli.closing import Closing

SHARD_BYTES = 4 * 2**30
# Values of a matrix that are in memory at once, in several forms.
_CHUNK_VALUES = 2**22
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1, "I8": 1}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to come. kind: as safetensors calls its type."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.kind]

    @property
    def row_bytes(self) -> int:
        return self.n_bytes // self.shape[0]


class ShardWriter(Closing):
    """One file with all its tensors' places laid out; those never written are zeros."""

    def __init__(
        self, path: Path, tensors: Iterable[PlannedTensor], metadata: Mapping[str, str]
    ) -> None:
        """metadata: what the file says of itself."""
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        self._tensors: dict[str, tuple[PlannedTensor, int]] = {}
        end = 0
        for tensor in tensors:
            offsets = [end, end + tensor.n_bytes]
            header[tensor.name] = {
                "dtype": tensor.kind,
                "shape": tensor.shape,
                "data_offsets": offsets,
            }
            self._tensors[tensor.name] = (tensor, end)
            end += tensor.n_bytes
        text = json.dumps(header).encode()
        # The tensors begin at a multiple of eight bytes.
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self._file: BinaryIO = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._data + end)

    def write(self, name: str, first_row: int, rows: NDArray[Any]) -> None:
        """Rows `first_row` and on of a tensor, in the type it was planned with."""
        tensor, begin = self._tensors[name]
        self._file.seek(self._data + begin + first_row * tensor.row_bytes)
        self._file.write(rows.tobytes())

    def close(self) -> None:
        self._file.close()


def split_into_shards(
    tensors: Sequence[Sequence[PlannedTensor]],
) -> list[list[PlannedTensor]]:
    """Tensors in files of SHARD_BYTES at most, where one tensor does not take more alone.

    tensors: in groups that stay together.
    """
    shards: list[list[PlannedTensor]] = [[]]
    room = SHARD_BYTES
    for group in tensors:
        needed = sum(tensor.n_bytes for tensor in group)
        if needed > room and shards[-1]:
            shards.append([])
            room = SHARD_BYTES
        shards[-1] += group
        room -= needed
    return shards


def shard_index(shards: Mapping[str, Sequence[PlannedTensor]]) -> dict[str, Any]:
    """What `model.safetensors.index.json` holds, by the names of the files."""
    total = sum(tensor.n_bytes for tensors in shards.values() for tensor in tensors)
    places = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    return {"metadata": {"total_size": total}, "weight_map": places}


def row_ranges(rows: int, columns: int) -> Iterator[slice]:
    """The rows of a matrix, as many at a time as are written at once."""
    step = max(1, _CHUNK_VALUES // columns)
    return (slice(begin, min(begin + step, rows)) for begin in range(0, rows, step))
