"""The number types a model may compute in, as bytes of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NumberType:
    """name: as `activation_dtype` has it. kind: what safetensors calls it."""

    name: str
    kind: str
    item_bytes: int

    def encode(self, values: Floats, what: str) -> NDArray[Any]:
        """The values rounded to nearest, in the file's layout.

        Raises ModelFileError, naming `what`, for values the type has no finite number for.
        """
        stored = self._store(values)
        if not np.isfinite(self.decode(stored)).all():
            raise ModelFileError(
                f"{what} holds values that are not finite in {self.name}; "
                "export with another --activation-dtype"
            )
        return stored

    def decode(self, stored: NDArray[Any]) -> Floats:
        """What `encode` gave, as float32."""
        if self.name == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def rounded(self, values: Floats) -> Floats:
        """The values as they are after they were stored."""
        return self.decode(self._store(values))

    def _store(self, values: Floats) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            match self.name:
                case "float16":
                    return values.astype("<f2")
                case "bfloat16":
                    return _upper_halves(values)
                case _:
                    return values.astype("<f4")


def _upper_halves(values: Floats) -> NDArray[np.uint16]:
    """float32 rounded to its upper 16 bits, to the even one of two equally near."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


NUMBER_TYPES: Mapping[str, NumberType] = {
    "float16": NumberType("float16", "F16", 2),
    "bfloat16": NumberType("bfloat16", "BF16", 2),
    "float32": NumberType("float32", "F32", 4),
}
