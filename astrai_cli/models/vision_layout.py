"""How the patches of an image lie: their order, their positions, and the cells they form.

The same numbers for every backend, in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astrai_cli.models.vision_spec import VisionSpec

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """The patches of an image of rows × columns, tile after tile.

    order: int64 [P], the patches' indices in row order, those of a tile beside each
    other. tiles: int64, how many patches each tile has.
    """

    rows: int
    columns: int
    order: NDArray[np.int64]
    tiles: NDArray[np.int64]

    @classmethod
    def of(cls, rows: int, columns: int, spec: VisionSpec) -> PatchLayout:
        side = spec.grid_side
        index = np.arange(rows * columns).reshape(rows, columns)
        tiles = [
            index[top : top + side, left : left + side].reshape(-1)
            for top in range(0, rows, side)
            for left in range(0, columns, side)
        ]
        return cls(rows, columns, np.concatenate(tiles), np.array([len(tile) for tile in tiles]))

    @property
    def coordinates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row and the column of each patch, int64 [P] each, in `order`."""
        return self.order // self.columns, self.order % self.columns

    def groups(self, layer: int, spec: VisionSpec) -> NDArray[np.int64]:
        """How many consecutive patches of `order` see each other in a layer."""
        return np.array([len(self.order)]) if spec.sees_all(layer) else self.tiles

    def angles(self, spec: VisionSpec) -> Floats:
        """Rotary angles [P, head width / 2]: the first half by the column, the second by the row.

        Both are counted from 1. Component i turns with i + head width / 2.
        """
        half = spec.head_width // 2
        exponents = np.arange(0, half, 2, dtype=np.float64) / half
        frequencies = (spec.rope_base**-exponents).astype(np.float32)
        row, column = self.coordinates
        return np.concatenate(
            [np.outer(at + 1, frequencies).astype(np.float32) for at in (column, row)], axis=1
        )

    def positions(self, table: Floats) -> Floats:
        """A table [side², width] sampled bilinearly at the patches' centres: [P, width].

        The table covers the whole image; beyond its outermost centres it fades to zero
        (PyTorch's grid_sample with align_corners off).
        """
        side = round(len(table) ** 0.5)
        row, column = self.coordinates
        sampled = np.zeros((len(self.order), table.shape[1]), dtype=np.float32)
        for y, down in _corners(row, self.rows, side):
            for x, across in _corners(column, self.columns, side):
                sampled += (down * across)[:, None] * table[y * side + x]
        return sampled

    def merge(self, rows: Floats, spec: VisionSpec) -> Floats:
        """Rows [P, width] in `order` as cells [P / merge², width * merge²] in row order.

        A cell has all its patches' values of channel 0, then those of channel 1, and so on.
        """
        merge = spec.merge
        in_rows = np.empty_like(rows)
        in_rows[self.order] = rows
        cells = in_rows.reshape(self.rows // merge, merge, self.columns // merge, merge, -1)
        return cells.transpose(0, 2, 4, 1, 3).reshape(len(rows) // merge**2, -1)


def _corners(
    at: NDArray[np.int64], count: int, side: int
) -> list[tuple[NDArray[np.int64], Floats]]:
    """The two neighbours in a table of `side` of each of `count` patches, with their weights."""
    centre = (2 * at + 1) * (side / (2 * count)) - 0.5
    first = np.floor(centre).astype(np.int64)
    corners = []
    for neighbour in (first, first + 1):
        weight = np.where((neighbour >= 0) & (neighbour < side), 1 - np.abs(centre - neighbour), 0)
        corners.append((neighbour.clip(0, side - 1), weight.astype(np.float32)))
    return corners


def split_patches(image: Floats, spec: VisionSpec) -> Floats:
    """An image [3, height, width] as its patches [P, 3 * patch²] in row order, channel first."""
    channels, height, width = image.shape
    patch = spec.patch_size
    grid = image.reshape(channels, height // patch, patch, width // patch, patch)
    return np.ascontiguousarray(grid.transpose(1, 3, 0, 2, 4)).reshape(-1, channels * patch**2)
