"""Keys and values in cells, and what the sequences of a packed step see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from backends.base import SequenceStep, Step

Integers = NDArray[np.int64]


class CellPool:
    """The cells of all layers: for each layer keys and values, [cells, heads, head width]."""

    def __init__(
        self, n_layers: int, cells: int, n_heads: int, head_width: int, dtype: mx.Dtype
    ) -> None:
        shape = (cells, n_heads, head_width)
        self.n_cells = cells
        self.n_heads = n_heads
        self.keys = [mx.zeros(shape, dtype) for _ in range(n_layers)]
        self.values = [mx.zeros(shape, dtype) for _ in range(n_layers)]

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.keys, *self.values]

    def write(self, layer: int, cells: mx.array, keys: mx.array, values: mx.array) -> None:
        """Keys and values [T, heads, head width] of the cells [T] of a layer.

        Nothing else refers to the layer's arrays, so MLX changes them in place.
        """
        self.keys[layer][cells] = keys
        self.values[layer][cells] = values


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with equal counts of queries that attend in one call.

    begin, end: their rows in the packed order. counts: how many queries each has. ends:
    int64 [B], the positions behind each sequence's last query. pages: int64 [B, most
    pages], padded with those of no meaning.
    """

    begin: int
    end: int
    count: int
    ends: Integers
    pages: Integers
    page_size: int

    def sees(self, window: int | None, n_heads: int) -> Sight:
        """What the queries see in a layer with that window.

        The last of the L positions is each sequence's newest; those before its first have
        cells of no meaning, and are masked.
        """
        longest = int(self.ends.max())
        length = longest if window is None else min(longest, self.count + window - 1)
        positions = self.ends[:, None] - length + np.arange(length)
        is_there = positions >= 0
        positions = positions.clip(0)
        page = np.take_along_axis(self.pages, positions // self.page_size, axis=1)
        cells = page * self.page_size + positions % self.page_size
        return Sight(
            run=_consecutive(cells),
            rows=mx.array(
                (cells[:, None] * n_heads + np.arange(n_heads)[:, None]).astype(np.int32)
            ),
            mask=self._mask(positions, is_there, window),
        )

    def _mask(
        self, positions: Integers, is_there: NDArray[np.bool_], window: int | None
    ) -> mx.array | str | None:
        is_full = bool(is_there.all())
        if is_full and self.count == 1:
            return None
        if is_full and (window is None or positions.shape[1] <= window):
            return "causal"
        queries = self.ends[:, None] - self.count + np.arange(self.count)
        distance = queries[:, :, None] - positions[:, None]
        mask = (distance >= 0) & is_there[:, None]
        if window is not None:
            mask &= distance < window
        return mx.array(mask[:, None])


@dataclass(frozen=True, slots=True)
class Sight:
    """The cells that a group's queries see, and which query sees which.

    run: the first cell, where the group is one sequence whose cells follow each other.
    rows: int32 [B, heads, L], of a layer's keys as [cells * heads, head width].
    mask: as MLX's attention takes it, bool [B, 1, queries, L].
    """

    run: int | None
    rows: mx.array
    mask: mx.array | str | None

    def of(self, layer: mx.array) -> mx.array:
        """Keys or values [B, heads, L, head width] of a layer [cells, heads, head width]."""
        if self.run is not None:
            length = self.rows.shape[2]
            return layer[self.run : self.run + length].transpose(1, 0, 2)[None]
        return layer.reshape(-1, layer.shape[2])[self.rows]


def group_sequences(step: Step) -> tuple[list[Group], Integers]:
    """The step's sequences in groups, and the packed order: the step's row of each of its rows.

    In a group the longest sequence is less than twice as long as the shortest, so that
    padding never takes more than what it pads.
    """
    sequences = step.sequences
    lengths = [len(each.tokens) for each in sequences]
    first_rows = np.cumsum([0, *lengths[:-1]])

    def alike(index: int) -> tuple[int, int]:
        return lengths[index], (sequences[index].start + lengths[index]).bit_length()

    groups: list[Group] = []
    order: list[Integers] = []
    begin = 0
    for _, members in groupby(sorted(range(len(sequences)), key=alike), key=alike):
        chosen = list(members)
        groups.append(_group(begin, [sequences[index] for index in chosen], step.page_size))
        order += [first_rows[index] + np.arange(lengths[index]) for index in chosen]
        begin = groups[-1].end
    return groups, np.concatenate(order)


def _group(begin: int, sequences: Sequence[SequenceStep], page_size: int) -> Group:
    count = len(sequences[0].tokens)
    ends = np.array([each.start + count for each in sequences])
    pages = np.zeros((len(sequences), -(-int(ends.max()) // page_size)), dtype=np.int64)
    for row, each in zip(pages, sequences, strict=True):
        seen = each.pages[: len(row)]
        row[: len(seen)] = seen
    return Group(begin, begin + count * len(sequences), count, ends, pages, page_size)


def _consecutive(cells: Integers) -> int | None:
    if len(cells) > 1 or (np.diff(cells[0]) != 1).any():
        return None
    return int(cells[0, 0])
