"""The engine's books about the KV cache: which task may use which cells.

Keys and values themselves live in the executor; here are only integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Identity = NDArray[np.integer[Any]]
"""One integer a position that says what is there: a token id, or below 0 a row of an image.

Equal integers at all positions up to some point mean equal keys and values there.
"""


@dataclass(frozen=True, slots=True)
class KVCacheView:
    """Where one task's positions live.

    Position p is in cell pages[p // page_size] * page_size + p % page_size.
    pages: int32, distinct; enough for every position the task has cells for.
    """

    pages: NDArray[np.int32]
    page_size: int


class KVCache(ABC):
    """Gives cells to tasks. Used by the engine thread alone.

    page_size: cells a page. n_cells: cells the executor must hold, in whole pages.
    capacity: positions that one task can have when there is no other.
    """

    page_size: int
    n_cells: int
    capacity: int

    @property
    @abstractmethod
    def cells_used(self) -> int:
        """Cells that somebody holds: a task, a session between its turns, a snapshot."""

    @property
    @abstractmethod
    def cells_cached(self) -> int:
        """Cells that nobody holds, and whose contents a task may still take over."""

    @abstractmethod
    def allocate_task(
        self, task_id: int, identity: Identity, n_reusable: int, n_positions: int, spare: int
    ) -> int | None:
        """Promise a task cells for its first n_positions, of which `identity` is known.

        Returns how many of the first n_reusable positions are computed already. None
        where that many cells, with `spare` pages besides, are not to be had now.
        """

    @abstractmethod
    def take_over(self, task_id: int, former_id: int, n_positions: int, spare: int) -> bool:
        """Give a task the cells of a former one, which ends thereby, and promise it the rest.

        False, and nothing is changed, where the rest is not to be had now.
        """

    @abstractmethod
    def catch_up(self, task_id: int, identity: Identity, n_reusable: int) -> int:
        """Take over what other tasks computed since of the next positions; how many those are."""

    @abstractmethod
    def shared_keys(self, task_id: int, identity: Identity, n: int) -> Sequence[int]:
        """Names of what the next n positions hold, or begin, that others could take over.

        Where two tasks have the same first name, they are about to compute the same.
        """

    @abstractmethod
    def grow(self, task_id: int, n_positions: int) -> bool:
        """Make sure the task has cells for n_positions; what was promised is always there."""

    @abstractmethod
    def shrink(self, task_id: int, n_positions: int) -> None:
        """Take back what the task has grown beyond n_positions, all it knows now."""

    @abstractmethod
    def record(self, task_id: int, identity: Identity, n_computed: int) -> None:
        """Take note that the first n_computed positions, of this identity, are computed."""

    @abstractmethod
    def view(self, task_id: int) -> KVCacheView:
        """The cells a task has."""

    @abstractmethod
    def free(self, task_id: int) -> None:
        """Take the task's cells back."""
