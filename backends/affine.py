"""GGUF's blocks as affine groups, the form that MLX and kernels for GPUs compute with.

A matrix [out, in] is unsigned integers of a few bits, in groups along a row: weight =
scale * integer + bias. Blocks of GGUF that are the same numbers are only packed anew; all
others may be dequantized and rounded to 8 bits in groups of GROUP, which is all MLX has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

GROUP = 32
SUPERBLOCK = 256
ROUNDED_BITS = 8

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AffineRows:
    """Rows of a matrix.

    integers: uint8 [rows, in], below 2 ** bits. scales, biases: float32 [rows, in / group].
    """

    bits: int
    integers: Bytes
    scales: Floats
    biases: Floats

    def packed(self) -> NDArray[np.uint32]:
        """The integers as MLX stores them: uint32 [rows, in * bits / 32].

        A row is one string of bits, the lowest of the first integer first.
        """
        eights = self.integers.reshape(-1, 8).astype(np.uint64)
        eights <<= np.arange(8, dtype=np.uint64) * np.uint64(self.bits)
        words = np.bitwise_or.reduce(eights, axis=1).astype("<u8")
        data = words.view(np.uint8).reshape(-1, 8)[:, : self.bits]
        packed: NDArray[np.uint32] = data.reshape(len(self.integers), -1).view("<u4")
        return packed

    def values(self) -> Floats:
        """The weights, float32 [rows, in]."""
        groups = self.integers.reshape(*self.scales.shape, -1).astype(np.float32)
        groups *= self.scales[..., None]
        groups += self.biases[..., None]
        return groups.reshape(len(groups), -1)


@dataclass(frozen=True, slots=True)
class NestedScales:
    """The scales and biases of blocks of SUPERBLOCK weights, as products.

    units: float32 [blocks, 2], a float16 for the scales and one for the biases. factors: int8
    [blocks, 2, groups], what each of them is times its unit.
    """

    units: Floats
    factors: NDArray[np.int8]


def bits_of(kind: GGMLQuantizationType) -> int:
    """Bits a weight takes that GGUF stores as `kind`, in groups of GROUP."""
    return _EXACT[kind].bits if is_exact(kind) else ROUNDED_BITS


def is_exact(kind: GGMLQuantizationType) -> bool:
    """Whether the integers stay as they are in groups of GROUP."""
    return exact_group(kind) == GROUP


def exact_group(kind: GGMLQuantizationType) -> int | None:
    """The group in which the integers of `kind` stay as they are; None where there is none."""
    return _EXACT[kind].group if kind in _EXACT else None


def repack(blocks: Bytes, kind: GGMLQuantizationType) -> AffineRows:
    """Stored rows, uint8 [rows, bytes a row], of a type that has an `exact_group`."""
    exact = _EXACT[kind]
    with np.errstate(all="ignore"):
        integers, scales, biases = exact.unpack(blocks.reshape(-1, exact.block_bytes))
    n = len(blocks)
    return AffineRows(
        exact.bits, integers.reshape(n, -1), scales.reshape(n, -1), biases.reshape(n, -1)
    )


def has_nested_scales(kind: GGMLQuantizationType) -> bool:
    return kind in _EXACT and _EXACT[kind].nested is not None


def nested_scales(blocks: Bytes, kind: GGMLQuantizationType) -> NestedScales:
    """Those of stored rows as in `repack`, of a type that has them, block after block."""
    exact = _EXACT[kind]
    assert exact.nested is not None
    with np.errstate(all="ignore"):
        return exact.nested(blocks.reshape(-1, exact.block_bytes))


def round_rows(rows: Floats, stored: Callable[[Floats], Floats]) -> AffineRows:
    """Float rows [rows, in], each group's range cut into 255 equal steps.

    stored: what becomes of scales and biases where they are kept; the integers make up for it.
    """
    groups = rows.reshape(len(rows), -1, GROUP)
    most = np.float32(2**ROUNDED_BITS - 1)
    lowest = stored(groups.min(axis=2))
    scales = stored((groups.max(axis=2) - lowest) / most)
    steps = groups - lowest[..., None]
    np.divide(steps, scales[..., None], out=steps, where=scales[..., None] != 0)
    integers = np.rint(steps).clip(0, most).astype(np.uint8).reshape(rows.shape)
    return AffineRows(ROUNDED_BITS, integers, scales, lowest)


_Parts = tuple[Bytes, Floats, Floats]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at a byte of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """Low halves of 16 or 32 bytes [..., bytes], then high halves: [..., 2 * bytes]."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """32 bits from a byte on, each as 0 or 16: [blocks, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> _Parts:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, scales * -8


def _q4_1(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> _Parts:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), scales, scales * -16


def _q5_1(blocks: Bytes) -> _Parts:
    integers = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return integers, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> _Parts:
    scales = _half(blocks, 0)
    # From signed to unsigned: adding 128 is flipping the highest bit.
    return blocks[:, 2:] ^ np.uint8(128), scales, scales * -128


def _q4_k(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 16:].reshape(-1, 4, GROUP)), *_products(_k_scales(blocks))


def _q5_k(blocks: Bytes) -> _Parts:
    # Bit g of byte j belongs to element j of group g.
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, GROUP)).reshape(-1, 8, GROUP)
    return low | high * np.uint8(16), *_products(_k_scales(blocks))


def _q6_k(blocks: Bytes) -> _Parts:
    """Halves of 128 elements: 64 bytes of low halves, 32 bytes of pairs of bits above them."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, GROUP)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, GROUP)
    high = pairs >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & np.uint8(3)
    return low | high * np.uint8(16), *_products(_q6_k_scales(blocks))


def _k_scales(blocks: Bytes) -> NestedScales:
    """Six bits for each of eight scales and minima.

    Bytes 4 to 7 and 8 to 11 hold the first four scales and minima in their low six bits.
    The others have their low four bits in bytes 12 to 15, scale below minimum, and their
    high two bits above the first four.
    """
    first, minima, rest = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, (rest & 15) | first >> 6 << 4], axis=1)
    minima = np.concatenate([minima & 63, rest >> 4 | minima >> 6 << 4], axis=1)
    units = np.concatenate([_half(blocks, 0), -_half(blocks, 2)], axis=1)
    return NestedScales(units, np.stack([scales, minima], axis=1).view(np.int8))


def _q6_k_scales(blocks: Bytes) -> NestedScales:
    """Eight bits, with a sign, for each of sixteen scales; integers are 32 too large."""
    unit, scales = _half(blocks, 208), blocks[:, 192:208].view(np.int8)
    units = np.concatenate([unit, unit * -32], axis=1)
    return NestedScales(units, np.stack([scales, scales], axis=1))


def _products(scales: NestedScales) -> tuple[Floats, Floats]:
    """Scales and biases [blocks, groups]."""
    products: Floats = scales.units[:, :, None] * scales.factors
    return products[:, 0], products[:, 1]


@dataclass(frozen=True, slots=True)
class _Exact:
    bits: int
    block_bytes: int
    unpack: Callable[[Bytes], _Parts]
    group: int = GROUP
    nested: Callable[[Bytes], NestedScales] | None = None


_EXACT: Mapping[GGMLQuantizationType, _Exact] = {
    GGMLQuantizationType.Q4_0: _Exact(4, 18, _q4_0),
    GGMLQuantizationType.Q4_1: _Exact(4, 20, _q4_1),
    GGMLQuantizationType.Q5_0: _Exact(5, 22, _q5_0),
    GGMLQuantizationType.Q5_1: _Exact(5, 24, _q5_1),
    GGMLQuantizationType.Q8_0: _Exact(8, 34, _q8_0),
    GGMLQuantizationType.Q4_K: _Exact(4, 144, _q4_k, nested=_k_scales),
    GGMLQuantizationType.Q5_K: _Exact(5, 176, _q5_k, nested=_k_scales),
    GGMLQuantizationType.Q6_K: _Exact(6, 210, _q6_k, group=16, nested=_q6_k_scales),
}
