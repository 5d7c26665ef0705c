"""Typed, bounded access to a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from mmap import mmap

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf_header import ArrayRef, Cursor, Value


class Metadata:
    """Metadata by key. Each getter raises ModelFileError that names the key, value and bound.

    A getter with a default gives it where the key is missing; without one the key
    is required.
    """

    def __init__(self, values: Mapping[str, Value], file: mmap, label: str) -> None:
        self._values = values
        self._file = file
        self._label = label

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def error(self, key: str, wanted: str) -> ModelFileError:
        if key not in self._values:
            return ModelFileError(f"{self._label}: metadata key {key!r} is missing")
        value = self._values[key]
        if isinstance(value, ArrayRef):
            shown = f"an array of {value.length} {value.kind.name}"
        else:
            shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:80] + "…"
        return ModelFileError(f"{self._label}: metadata key {key!r} is {shown}, must be {wanted}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from `low` to `high`, stored as an integer or a float."""
        value = self._values.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise self.error(key, f"a number from {low:g} to {high:g}")

    def length(self, key: str) -> int:
        """How many items the array has."""
        return self._array(key).length

    def texts(self, key: str) -> list[str]:
        array = self._array(key)
        if array.kind is not GGUFValueType.STRING:
            raise self.error(key, "an array of strings")
        cursor = Cursor(self._file, self._label, array.offset)
        return [cursor.text(f"an item of {key!r}") for _ in range(array.length)]

    def integers(self, key: str) -> NDArray[np.int64]:
        array = self._array(key)
        return self._numbers(key, array, "iu", "an array of integers").astype(np.int64)

    def numbers(self, key: str) -> list[float]:
        array = self._array(key)
        return [float(x) for x in self._numbers(key, array, "f", "an array of numbers")]

    def flags(self, key: str) -> list[bool]:
        array = self._array(key)
        return [bool(value) for value in self._numbers(key, array, "b", "an array of booleans")]

    def _array(self, key: str) -> ArrayRef:
        value = self._values.get(key)
        if not isinstance(value, ArrayRef):
            raise self.error(key, "an array")
        return value

    def _numbers(self, key: str, array: ArrayRef, kinds: str, wanted: str) -> NDArray[np.generic]:
        if array.kind is GGUFValueType.STRING:
            raise self.error(key, wanted)
        numbers = Cursor(self._file, self._label, array.offset).scalars(
            array.kind, array.length, f"metadata key {key!r}"
        )
        if numbers.dtype.kind not in kinds:
            raise self.error(key, wanted)
        return numbers
