"""GGUF's blocks as affine groups; those of MLX's format dequantized by MLX itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize
from muse_fixtures import distance
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError
from backends.affine import GROUP, AffineRows, bits_of, exact_group, is_exact, repack, round_rows
from backends.numbers import NUMBER_TYPES

Bytes = NDArray[np.uint8]
EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K"]
# The bytes of a block that hold its float16 numbers.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_blocks(kind: GGMLQuantizationType, rows: int = 24, blocks: int = 3) -> Bytes:
    """Rows whose every bit is random, but for the numbers that scale them."""
    size = GGML_QUANT_SIZES[kind][1]
    random = np.random.default_rng(kind.value)
    data = random.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        data[:, at : at + 2] = random.normal(size=(len(data), 1)).astype("<f2").view(np.uint8)
    return data.reshape(rows, -1)


def by_mlx(rows: AffineRows) -> NDArray[np.float32]:
    parts = mx.array(rows.packed()), mx.array(rows.scales), mx.array(rows.biases)
    return np.array(mx.dequantize(*parts, group_size=GROUP, bits=rows.bits))


@pytest.mark.parametrize("name", EXACT)
def test_the_same_numbers(name: str) -> None:
    kind = GGMLQuantizationType[name]
    assert is_exact(kind)
    blocks = random_blocks(kind)
    rows = repack(blocks, kind)
    assert rows.bits == bits_of(kind)
    expected = dequantize(blocks, kind)
    np.testing.assert_allclose(by_mlx(rows), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(rows.values(), by_mlx(rows))


@pytest.mark.parametrize("name", [*EXACT, "Q6_K"])
def test_weights_are_the_file_s_to_the_last_bit(name: str) -> None:
    kind = GGMLQuantizationType[name]
    blocks = random_blocks(kind)
    rows = repack(blocks, kind)
    assert rows.integers.shape[1] == rows.scales.shape[1] * (exact_group(kind) or 0)
    assert rows.integers.max() < 2**rows.bits
    np.testing.assert_array_equal(rows.values(), dequantize(blocks, kind))


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0"])
def test_all_others_are_rounded_to_8_bits(name: str) -> None:
    kind = GGMLQuantizationType[name]
    assert (is_exact(kind), bits_of(kind)) == (False, 8)


@pytest.mark.parametrize("name", NUMBER_TYPES)
def test_what_rounding_costs(name: str) -> None:
    stored = NUMBER_TYPES[name].rounded
    random = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    values = dequantize(quantize(random, GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0)
    for rows in (random, values):
        rounded = round_rows(rows, stored)
        np.testing.assert_array_equal(stored(rounded.scales), rounded.scales)
        assert distance(by_mlx(rounded), rows) < 0.006
        step = np.ptp(rows.reshape(-1, GROUP), axis=1).max() / 255
        # Scales of few bits may leave the ends of a group out of reach.
        assert np.abs(by_mlx(rounded) - rows).max() <= (0.51 if name != "bfloat16" else 1.6) * step


def test_groups_of_one_value() -> None:
    rows = np.full((2, 64), 1.75, dtype=np.float32)
    np.testing.assert_array_equal(by_mlx(round_rows(rows, np.copy)), rows)


@pytest.mark.parametrize(
    ("name", "relative", "smallest"),
    [("float16", 2**-11, 2**-25), ("bfloat16", 2**-8, 0.0), ("float32", 0.0, 0.0)],
)
def test_number_types_round_to_nearest(name: str, relative: float, smallest: float) -> None:
    numbers = NUMBER_TYPES[name]
    values = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    values *= np.float32(10) ** np.arange(-6, 4, dtype=np.float32).repeat(100)
    stored = numbers.encode(values, "x")
    assert stored.itemsize == numbers.item_bytes
    decoded = numbers.decode(stored)
    assert (np.abs(decoded - values) <= np.maximum(relative * np.abs(values), smallest)).all()
    expected = np.array(mx.array(values).astype(getattr(mx, name)).astype(mx.float32))
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize(
    ("name", "value"), [("float16", 70000.0), ("bfloat16", 3.4e38), ("float32", np.inf)]
)
def test_values_that_are_not_finite(name: str, value: float) -> None:
    with pytest.raises(ModelFileError, match=f"blk.0 holds values that are not finite in {name}"):
        NUMBER_TYPES[name].encode(np.array([1.0, value], dtype=np.float32), "blk.0")
