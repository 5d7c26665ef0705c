"""A packed step as one row of integers, which reaches the device in one copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.base import Step, drawn_token
from backends.packing import PackedStep

Integers = NDArray[np.int32]

# Triton compiles a kernel anew for pointers that are no multiples of 16 bytes.
_ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with one count of rows each, beside each other.

    begin: their first row. longest: the most positions that one of them sees.
    """

    begin: int
    n_sequences: int
    count: int
    longest: int

    @property
    def end(self) -> int:
        return self.begin + self.n_sequences * self.count


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a step: first the sequences of one token, then the others.

    rows: [4, T], of each its token, its position, which is the last that it sees, the cell it
    is written to, and where its sequence's pages begin in `pages` [P]. tiles: [2, M],
    consecutive rows of one sequence: their first and their count. wanted: [R], the rows whose
    logits are, in the order of the step's sequences. embedded: [E], the rows that images fill.
    """

    rows: Integers
    tiles: Integers
    pages: Integers
    page_size: int
    wanted: Integers
    embedded: Integers
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, step: Step, packed: PackedStep, tile_rows: int) -> Layout:
        """tile_rows: the most rows of a tile."""
        counts = np.array([len(each.tokens) for each in step.sequences])
        ends = np.array([each.start for each in step.sequences]) + counts
        n_pages = -(-ends // step.page_size)
        first_pages = np.cumsum(n_pages) - n_pages
        seen = [each.pages[:n] for each, n in zip(step.sequences, n_pages, strict=True)]

        sequences = np.argsort(counts > 1, kind="stable")
        order = np.argsort(np.repeat(counts > 1, counts), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        by_row = packed.tokens, packed.positions, packed.cells, np.repeat(first_pages, counts)
        return cls(
            rows=np.stack([each[order].astype(np.int32) for each in by_row]),
            tiles=cut_in_tiles(counts[sequences], tile_rows),
            pages=np.concatenate(seen),
            page_size=step.page_size,
            wanted=place[packed.rows].astype(np.int32),
            embedded=place[packed.embedded].astype(np.int32),
            groups=tuple(_groups(counts[sequences].tolist(), ends[sequences].tolist())),
        )

    @classmethod
    def idle(cls, cell: int, n_rows: int = 1, tile_rows: int = 1) -> Layout:
        """A prompt that nobody asked for, all of it written to that cell."""
        zeros = np.zeros(n_rows, dtype=np.int32)
        rows = np.stack([zeros, np.arange(n_rows, dtype=np.int32), zeros + cell, zeros])
        return cls(
            rows=rows.astype(np.int32),
            tiles=cut_in_tiles(np.array([n_rows]), tile_rows),
            pages=zeros,
            page_size=1,
            wanted=np.array([n_rows - 1], dtype=np.int32),
            embedded=np.zeros(0, dtype=np.int32),
            groups=(Group(0, 1, n_rows, n_rows),),
        )

    @property
    def n_rows(self) -> int:
        return int(self.rows.shape[1])

    @property
    def parts(self) -> list[Integers]:
        """In the order of the fields of `StepTensors`."""
        size = np.array([self.page_size], dtype=np.int32)
        return [size, *self.rows, *self.tiles, self.pages, self.wanted, self.embedded]

    @property
    def follows(self) -> bool:
        """Whether there are ids that stand for what the step before drew."""
        return bool(self.rows[0].min() < 0)

    def padded(self, n_rows: int, cell: int) -> Layout:
        """A step of single tokens with rows that nobody looks at, written to that cell."""
        more = np.zeros((4, n_rows - self.n_rows), dtype=np.int32)
        more[2] = cell
        [group] = self.groups
        tiles = np.stack([np.arange(n_rows), np.ones(n_rows)]).astype(np.int32)
        return replace(
            self,
            rows=np.concatenate([self.rows, more], axis=1),
            tiles=tiles,
            groups=(replace(group, n_sequences=n_rows),),
        )

    def integers(self) -> Integers:
        """All parts, each from a multiple of _ALIGNMENT on."""
        row = np.zeros(sum(_aligned(len(part)) for part in self.parts), dtype=np.int32)
        begin = 0
        for part in self.parts:
            row[begin : begin + len(part)] = part
            begin += _aligned(len(part))
        return row


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A `Layout` on the device: int32 views of one buffer. page_size: [1]."""

    page_size: Tensor
    tokens: Tensor
    positions: Tensor
    cells: Tensor
    first_pages: Tensor
    tile_begins: Tensor
    tile_counts: Tensor
    pages: Tensor
    wanted: Tensor
    embedded: Tensor

    @classmethod
    def of(cls, buffer: Tensor, layout: Layout) -> StepTensors:
        """buffer: of `layout.integers()`, perhaps longer."""
        views, begin = [], 0
        for part in layout.parts:
            views.append(buffer[begin : begin + len(part)])
            begin += _aligned(len(part))
        return cls(*views)

    @staticmethod
    def most_integers(n_rows: int, max_context: int) -> int:
        """Those of a step of that many single tokens, whatever its pages."""
        most = [1, *[n_rows] * 6, n_rows * max_context, n_rows]
        return sum(map(_aligned, most))


def put_drawn(tokens: Tensor, drawn: Tensor) -> None:
    """Put tokens that were drawn, int32 [draws], in the places of the ids that stand for them.

    One that could not be drawn becomes 0: nobody will ask what follows it.
    """
    places = drawn_token(0) - tokens
    ids = drawn.clamp(min=0).index_select(0, places.clamp(min=0))
    tokens.copy_(torch.where(places >= 0, ids, tokens))


def upload(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """The values on the device; the copy is under way when this returns."""
    return staged(values, device).to(device, non_blocking=True)


def staged(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """The values in memory of the host that the device copies from by itself."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory()


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def cut_in_tiles(counts: NDArray[np.int64], tile_rows: int) -> Integers:
    """`Layout.tiles` of sequences with these counts of rows, each tile of tile_rows at most."""
    per_sequence = -(-counts // tile_rows)
    first_tile = np.cumsum(per_sequence) - per_sequence
    index = np.arange(per_sequence.sum()) - np.repeat(first_tile, per_sequence)
    begins = np.repeat(np.cumsum(counts) - counts, per_sequence) + index * tile_rows
    rest = np.repeat(counts, per_sequence) - index * tile_rows
    return np.stack([begins, rest.clip(max=tile_rows)]).astype(np.int32)


def _groups(counts: list[int], ends: list[int]) -> Iterator[Group]:
    n_singles = sum(count == 1 for count in counts)
    if n_singles:
        yield Group(0, n_singles, 1, max(ends[:n_singles]))
    begin = n_singles
    for count, end in zip(counts[n_singles:], ends[n_singles:], strict=True):
        yield Group(begin, 1, count, end)
        begin += count
