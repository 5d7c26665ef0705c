"""A model file's weights as float32 arrays, one tensor at a time, in astrai's conventions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import ARCHITECTURES, expected_tensors
from astrai_cli.models.gguf import ModelFile, to_float32
from astrai_cli.models.spec import ModelSpec

_ROTARY_ROWS = re.compile(r"blk\.\d+\.attn_([qk])(_norm)?\.(?:weight|bias)")


class TensorSource(Protocol):
    """Where a decoder's weights come from; see `Weights`.

    shapes: of every tensor by its GGUF name, in the order they are used.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get(self, name: str) -> NDArray[np.float32]: ...

    def get_rows(
        self, name: str, rows: Sequence[int] | NDArray[np.integer]
    ) -> NDArray[np.float32]: ...


class Weights:
    """Weights of an open ModelFile; nothing is kept between calls.

    Query and key rows and their norms come in half-split rotary order (see RopeSpec)
    whatever the file's order is, in `get`, `get_rows` and `raw` alike.
    """

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self.spec = model.spec
        self.shapes: Mapping[str, tuple[int, ...]] = expected_tensors(model.spec)

    def get(self, name: str) -> NDArray[np.float32]:
        """The whole tensor: float32, a matrix as [out, in], a vector as [n].

        Raises ModelFileError for an unknown name and for values that are not finite.
        """
        tensor = self._model.tensor(name)
        values = self._finite(name, to_float32(self._model.blocks(name), tensor.type))
        values = values.reshape(tensor.shape)
        order = self._row_order(name)
        return values if order is None else values[order]

    def get_rows(self, name: str, rows: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Only these rows of a matrix: float32 [len(rows), in]."""
        tensor = self._model.tensor(name)
        order = self._row_order(name)
        chosen = np.asarray(rows, dtype=np.int64)
        if order is not None:
            chosen = order[chosen]
        return self._finite(name, to_float32(self._model.blocks(name)[chosen], tensor.type))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A matrix's stored blocks, uint8 [out, bytes a row]; their type: `type_name`.

        A row's blocks are contiguous, so reordering rows keeps every block as it is.
        The array may be a read-only view of the file.
        """
        blocks = self._model.blocks(name)
        order = self._row_order(name)
        return blocks if order is None or len(blocks) == 1 else blocks[order]

    def type_name(self, name: str) -> str:
        """The ggml type the tensor is stored as, such as "Q4_1"."""
        return self._model.tensor(name).type.name

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self._model.path}: tensor {name!r} holds values not finite")
        return values

    def _row_order(self, name: str) -> NDArray[np.int64] | None:
        """The file's row for each of ours, where the two orders differ."""
        spec = self._model.spec
        match = _ROTARY_ROWS.fullmatch(name)
        if match is None or not ARCHITECTURES[spec.architecture].neighbour_rope:
            return None
        n_heads = spec.n_heads if match[1] == "q" else spec.n_kv_heads
        if match[2]:
            n_heads = 1  # One vector for all heads.
        head = np.arange(spec.head_width)
        rotary = head[: spec.rope.dimension]
        head = np.concatenate([rotary[0::2], rotary[1::2], head[spec.rope.dimension :]])
        starts = np.arange(n_heads) * spec.head_width
        return (starts[:, None] + head).reshape(-1)
