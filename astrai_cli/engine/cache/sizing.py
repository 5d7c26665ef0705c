"""How large a cache is, from what the user allows and what the engine must be able to run."""

from __future__ import annotations

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache.base import KVCache
from astrai_cli.engine.cache.contiguous import ContiguousCache
from astrai_cli.engine.cache.paged import PageCache
from astrai_cli.engine.cache.storage import Storage
from astrai_cli.errors import InvalidInputError

# With snapshots and no number of capture slots given, this many at most.
_MAX_CAPTURE_SLOTS = 2


def capture_slots(limits: LimitsConfig, n_sequences: int) -> int:
    """Prompts that may be becoming snapshots at once."""
    if not limits.prefix_cache_entries:
        return 0
    return limits.prefix_capture_slots or min(n_sequences, _MAX_CAPTURE_SLOTS)


def make_cache(limits: LimitsConfig, n_sequences: int, max_context: int) -> KVCache:
    """The cache that `limits` ask for, for n_sequences at once of max_context positions.

    A contiguous cache, and one with snapshots, reserves max_context cells for each
    sequence, snapshot and capture slot; a paged cache needs the room of one sequence.
    One of max_cells is left to the executor, for padded writes. Raises InvalidInputError
    with the numbers where that does not fit.
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
    n_reserved = n_sequences + limits.prefix_cache_entries + n_captures
    if limits.max_cells is None:
        n_cells = n_reserved * reservation
    else:
        n_cells = limits.max_cells - 1
        reserves_all = contiguous or limits.prefix_cache_entries > 0
        _check_room(limits, n_sequences, n_captures, reservation, reserves_all)
    if contiguous:
        return ContiguousCache(n_sequences, max_context)
    return PageCache(
        Storage(n_cells // page_size, page_size),
        n_snapshots=limits.prefix_cache_entries,
        n_capture_slots=n_captures,
    )


def _check_room(
    limits: LimitsConfig, n_sequences: int, n_captures: int, reservation: int, reserves_all: bool
) -> None:
    assert limits.max_cells is not None
    n_reserved = n_sequences + limits.prefix_cache_entries + n_captures if reserves_all else 1
    n_needed = n_reserved * reservation + 1
    if n_needed <= limits.max_cells:
        return
    sum_ = (
        f"{n_sequences} sequences, {limits.prefix_cache_entries} snapshots and "
        f"{n_captures} capture slots"
        if reserves_all
        else "one sequence"
    )
    raise InvalidInputError(
        f"max_cells is {limits.max_cells}, but {sum_} of {reservation} cells each, and one for "
        f"padded writes, need {n_needed}; lower max_context or raise max_cells",
        param="max_cells",
    )
