"""The C++ sources, and their C interface as ctypes sees it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import BackendUnavailableError

ERROR_BYTES = 256


class Sequence(ctypes.Structure):
    """astrai::Sequence: one sequence's share of a packed step."""

    _fields_ = (
        ("first_row", c_int64),
        ("rows", c_int64),
        ("start", c_int64),
        ("pages", POINTER(c_int32)),
    )


class Embedded(ctypes.Structure):
    """astrai::Embedded: the rows of a step that are not looked up."""

    _fields_ = (
        ("rows", POINTER(c_int64)),
        ("values", POINTER(c_float)),
        ("count", c_int64),
        ("width", c_int64),
    )


class Matrix(ctypes.Structure):
    """astrai::Matrix: float32 rows, contiguous."""

    _fields_ = (("values", POINTER(c_float)), ("rows", c_int64), ("columns", c_int64))


def pointer(array: NDArray[np.generic], kind: type[ctypes._SimpleCData[Any]]) -> Any:
    """Where the values of a contiguous array lie, as a pointer to `kind`."""
    return array.ctypes.data_as(POINTER(kind))


@cache
def load(path: Path) -> ctypes.CDLL:
    """The library with its functions' types declared; calls release Python's lock.

    Raises BackendUnavailableError.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendUnavailableError(
            f"{path} cannot be loaded ({error}); delete it and run: astrai build --backend cpu"
        ) from error
    declare = {
        "astrai_set_threads": (c_int, [c_int]),
        "astrai_open": (
            c_void_p,
            [c_char_p, c_int, c_int, c_int, c_int, POINTER(c_int64), c_char_p],
        ),
        "astrai_close": (None, [c_void_p]),
        "astrai_bytes_per_cell": (c_int64, [c_void_p]),
        "astrai_allocate": (c_int, [c_void_p, c_int64]),
        "astrai_step": (
            c_int64,
            [
                c_void_p,
                POINTER(c_int32),
                POINTER(c_int64),
                POINTER(c_int64),
                c_int64,
                POINTER(c_int64),
                c_int64,
                POINTER(Sequence),
                c_int64,
                c_int64,
                c_int,
                POINTER(Embedded),
                POINTER(POINTER(c_float)),
                POINTER(POINTER(c_float)),
                c_char_p,
            ],
        ),
        "astrai_fill": (
            c_int,
            [
                c_void_p,
                POINTER(c_float),
                c_int64,
                POINTER(c_int64),
                POINTER(c_int64),
                c_int64,
                c_char_p,
            ],
        ),
        "astrai_open_tower": (c_void_p, [c_char_p, c_char_p]),
        "astrai_close_tower": (None, [c_void_p]),
        "astrai_run_tower": (
            c_int,
            [
                c_void_p,
                c_char_p,
                POINTER(Matrix),
                c_int64,
                POINTER(Matrix),
                c_int64,
                c_char_p,
            ],
        ),
        "astrai_attend_groups": (
            c_int,
            [
                POINTER(c_float),
                POINTER(c_float),
                POINTER(c_float),
                c_int,
                c_int,
                c_float,
                POINTER(c_int64),
                c_int64,
                POINTER(c_float),
                c_char_p,
            ],
        ),
    }
    for name, (result, arguments) in declare.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
