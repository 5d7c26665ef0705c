"""The shape of what the executor holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Storage:
    """Cells in pages; their keys and values are the executor's business."""

    n_pages: int
    page_size: int

    @property
    def n_cells(self) -> int:
        return self.n_pages * self.page_size

    def pages_for(self, n_positions: int) -> int:
        return -(-n_positions // self.page_size)
