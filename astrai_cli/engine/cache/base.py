"""The engine's books about the KV cache: which task may use which cells.

Keys and values themselves live in the executor; here are only integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KVCacheView:
    """Where one task's positions live.

    Position p is in cell pages[p // page_size] * page_size + p % page_size.
    pages: int32, distinct; enough for every position the task may compute next.
    """

    pages: NDArray[np.int32]
    page_size: int


class KVCache(ABC):
    """Gives cells to tasks. Used by the engine thread alone.

    page_size: cells a page. n_cells: cells the executor must hold, in whole pages.
    """

    page_size: int
    n_cells: int

    @property
    @abstractmethod
    def cells_used(self) -> int:
        """Cells that no new task can have at the moment."""

    @abstractmethod
    def allocate_task(
        self, task_id: int, prompt: NDArray[np.int32], n_tokens_max: int
    ) -> int | None:
        """Give a new task cells for up to n_tokens_max positions.

        Returns how many of the prompt's first tokens are in those cells already
        (fewer than the whole prompt), or None where there is no room now.
        """

    @abstractmethod
    def view(self, task_id: int) -> KVCacheView:
        """The cells of a task that has been allocated."""

    @abstractmethod
    def free(self, task_id: int) -> None:
        """Take the task's cells back."""
