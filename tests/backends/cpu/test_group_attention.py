"""The native attention inside groups, against float64."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.cpu import native

HEADS = 3
GROUPS = ([1], [700], [64, 64, 64], [1024, 32, 1100, 7], [16] * 40)
Rows = NDArray[np.float32]


def random_rows(rows: int, width: int) -> list[Rows]:
    """Queries, keys and values."""
    random = np.random.default_rng(rows * 1000 + width)
    return [random.standard_normal((rows, HEADS, width), dtype=np.float32) for _ in range(3)]


def attend(library: Path, qkv: list[Rows], groups: list[int]) -> Rows:
    width = qkv[0].shape[2]
    out = np.full_like(qkv[0], np.nan)
    sizes = np.array(groups)
    status = native.load(library).astrai_attend_groups(
        *(native.pointer(rows, c_float) for rows in qkv),
        HEADS,
        width,
        width**-0.5,
        native.pointer(sizes, c_int64),
        len(sizes),
        native.pointer(out, c_float),
        ctypes.create_string_buffer(native.ERROR_BYTES),
    )
    assert status == 0
    return out


def expected(qkv: list[Rows], groups: list[int]) -> NDArray[np.float64]:
    outputs = []
    for q, k, v in zip(*(np.split(rows, np.cumsum(groups)[:-1]) for rows in qkv), strict=True):
        scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * q.shape[2] ** -0.5
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        outputs.append(np.einsum("hqk,khd->qhd", shares, v))
    return np.concatenate(outputs)


@pytest.mark.parametrize("width", [8, 20, 64, 96, 256])
@pytest.mark.parametrize("groups", GROUPS, ids=["one", "whole", "even", "ragged", "many"])
def test_each_row_sees_its_whole_group(native_library: Path, width: int, groups: list[int]) -> None:
    qkv = random_rows(sum(groups), width)
    found = attend(native_library, qkv, groups)
    np.testing.assert_allclose(found, expected(qkv, groups), rtol=1e-4, atol=1e-5)


def test_a_group_is_as_if_alone(native_library: Path) -> None:
    groups = [1024, 32, 1100, 7]
    qkv = random_rows(sum(groups), 96)
    together = np.split(attend(native_library, qkv, groups), np.cumsum(groups)[:-1])
    parts = zip(*(np.split(rows, np.cumsum(groups)[:-1]) for rows in qkv), strict=True)
    for part, rows in zip(parts, together, strict=True):
        np.testing.assert_array_equal(attend(native_library, list(part), [len(rows)]), rows)
