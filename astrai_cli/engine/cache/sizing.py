"""How large a cache is, from what the user allows and what the engine must be able to run."""

from __future__ import annotations

from dataclasses import dataclass

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache.base import KVCache
from astrai_cli.engine.cache.contiguous import ContiguousCache
from astrai_cli.engine.cache.paged import PageCache
from astrai_cli.engine.cache.storage import Storage
from astrai_cli.errors import InvalidInputError
from backends.base import CellBounds

# With snapshots and no number of capture slots given, this many at most.
_MAX_CAPTURE_SLOTS = 2


def capture_slots(limits: LimitsConfig, n_sequences: int) -> int:
    """Prompts that may be becoming snapshots at once."""
    if not limits.prefix_cache_entries:
        return 0
    return limits.prefix_capture_slots or min(n_sequences, _MAX_CAPTURE_SLOTS)


def make_cache(
    limits: LimitsConfig,
    n_sequences: int,
    max_context: int,
    bounds: CellBounds | None = None,
    *,
    draft_max_cells: int | None = None,
) -> KVCache:
    """The cache that `limits` ask for, for n_sequences at once of max_context positions.

    A contiguous cache, one with snapshots, and one in a pool with bounds reserves max_context
    cells for each sequence, snapshot and capture slot; another paged cache needs the room of
    one sequence. One of max_cells is left to the executor, for padded writes.
    draft_max_cells: all that a block draft bears, that one included; None for no bound. Raises
    InvalidInputError with the numbers where that does not fit.
    """
    contiguous = limits.cache == "contiguous"
    if contiguous and limits.prefix_cache_entries:
        raise InvalidInputError(
            f"prefix_cache_entries is {limits.prefix_cache_entries}, but snapshots share pages: "
            "they need the paged cache",
            param="prefix_cache_entries",
        )
    n_captures = capture_slots(limits, n_sequences)
    page_size = max_context if contiguous else limits.page_size
    reservation = -(-max_context // page_size) * page_size
    reserved = _Reserved(n_sequences, limits.prefix_cache_entries, n_captures, reservation)
    if bounds is not None:
        if (limits.max_cells or 0) > bounds.max_cells:
            raise InvalidInputError(
                f"max_cells is {limits.max_cells}, but the artifact was exported for "
                f"{bounds.max_cells}",
                param="max_cells",
            )
        reserved.check_resident(bounds.max_resident)
        reserved.check_cells(limits.max_cells or bounds.max_cells)
    if draft_max_cells is not None:
        reserved.check_draft(limits.max_cells, draft_max_cells)
    if limits.max_cells is None:
        n_cells = reserved.n_cells
    else:
        n_cells = limits.max_cells - 1
        alone = not contiguous and not limits.prefix_cache_entries
        (_Reserved(1, 0, 0, reservation) if alone else reserved).check_cells(limits.max_cells)
    if contiguous:
        return ContiguousCache(n_sequences, max_context)
    return PageCache(
        Storage(n_cells // page_size, page_size),
        n_snapshots=limits.prefix_cache_entries,
        n_capture_slots=n_captures,
    )


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Who reserves cells, and how many each."""

    n_sequences: int
    n_snapshots: int
    n_captures: int
    each: int

    @property
    def n_cells(self) -> int:
        return self._n_resident * self.each

    def check_cells(self, max_cells: int) -> None:
        n_needed = self.n_cells + 1
        if n_needed > max_cells:
            raise InvalidInputError(
                f"max_cells is {max_cells}, but {self} of {self.each} cells each, and one for "
                f"padded writes, need {n_needed}; lower max_context or raise max_cells",
                param="max_cells",
            )

    def check_draft(self, max_cells: int | None, draft_max_cells: int) -> None:
        if max_cells is None:
            wanted = f"{self} of {self.each} cells each, and one for padded writes, need"
            cure = "lower max_context or max_decode_sequences"
        else:
            wanted, cure = "max_cells is", "lower it"
        n_cells = max_cells or self.n_cells + 1
        if n_cells > draft_max_cells:
            raise InvalidInputError(
                f"{wanted} {n_cells}, but the block draft was exported for {draft_max_cells} "
                f"(draft_max_cells); {cure}, or go without dflash",
                param="max_cells",
            )

    def check_resident(self, most: int) -> None:
        if self._n_resident > most:
            raise InvalidInputError(
                f"{self} are {self._n_resident} sessions, of which the pool of cells tracks at "
                f"most {most}; lower max_decode_sequences",
                param="max_decode_sequences",
            )

    def __str__(self) -> str:
        if self._n_resident == 1:
            return "one sequence"
        return (
            f"{self.n_sequences} sequences, {self.n_snapshots} snapshots and "
            f"{self.n_captures} capture slots"
        )

    @property
    def _n_resident(self) -> int:
        return self.n_sequences + self.n_snapshots + self.n_captures
