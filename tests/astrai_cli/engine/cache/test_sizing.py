from __future__ import annotations

from typing import Any

import pytest

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import ContiguousCache, KVCache, PageCache
from astrai_cli.engine.cache.sizing import make_cache
from astrai_cli.errors import InvalidInputError
from backends.base import CellBounds


def cache(n_sequences: int = 4, max_context: int = 100, **limits: Any) -> KVCache:
    return make_cache(LimitsConfig(**limits), n_sequences, max_context)


@pytest.mark.parametrize(
    ("limits", "kind", "n_cells"),
    [
        ({"cache": "contiguous"}, ContiguousCache, 4 * 100),
        ({"cache": "contiguous", "max_cells": 401}, ContiguousCache, 4 * 100),
        # Pages are whole: 4 of 32 cells hold 100 positions.
        ({"page_size": 32}, PageCache, 4 * 128),
        ({"page_size": 32, "max_cells": 129}, PageCache, 128),
        ({"page_size": 32, "max_cells": 161}, PageCache, 160),
        ({"page_size": 50, "prefix_cache_entries": 3}, PageCache, (4 + 3 + 2) * 100),
        (
            {"page_size": 50, "prefix_cache_entries": 3, "prefix_capture_slots": 1},
            PageCache,
            (4 + 3 + 1) * 100,
        ),
        ({"page_size": 50, "prefix_capture_slots": 5}, PageCache, 4 * 100),
    ],
)
def test_a_cache_has_the_cells_it_must_have(
    limits: dict[str, Any], kind: type[KVCache], n_cells: int
) -> None:
    made = cache(**limits)
    assert isinstance(made, kind)
    assert made.n_cells == n_cells


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"cache": "contiguous", "max_cells": 400},
            "max_cells is 400, but 4 sequences, 0 snapshots and 0 capture slots of 100 cells "
            "each, and one for padded writes, need 401",
        ),
        (
            {"page_size": 50, "max_cells": 900, "prefix_cache_entries": 3},
            "4 sequences, 3 snapshots and 2 capture slots of 100 cells each, .* need 901",
        ),
        ({"page_size": 50, "max_cells": 100}, "but one sequence of 100 cells each, .* need 101"),
        ({"cache": "contiguous", "prefix_cache_entries": 1}, "need the paged cache"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        cache(**limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"prefix_cache_entries": 3}, "4 sequences, 3 snapshots and 2 capture slots are 9 .* 8;"),
        ({"max_cells": 1001}, "max_cells is 1001, but the artifact was exported for 1000"),
        ({"page_size": 300}, "max_cells is 1000, .* 4 sequences, .* of 300 cells each, .* 1201"),
        ({"page_size": 50, "max_cells": 400}, "max_cells is 400, .* of 100 cells each, .* 401"),
    ],
)
def test_a_pool_with_bounds_reserves_for_all(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_cache(LimitsConfig(**limits), 4, 100, CellBounds(1000, 8))
    made = make_cache(LimitsConfig(page_size=50, max_cells=401), 4, 100, CellBounds(1000, 8))
    assert made.n_cells == 400


@pytest.mark.parametrize("bounds", [None, CellBounds(1000, 8)])
def test_a_draft_bounds_the_cells_too(bounds: CellBounds | None) -> None:
    def draft_cache(cells: int, **limits: Any) -> KVCache:
        config = LimitsConfig(page_size=50, **limits)
        return make_cache(config, 4, 100, bounds, draft_max_cells=cells)

    assert draft_cache(401).n_cells == 400
    with pytest.raises(InvalidInputError, match=r"4 sequences, .* of 100 .* need 401, but .* 400 "):
        draft_cache(400)
    assert draft_cache(450, max_cells=450).n_cells == 400
    with pytest.raises(InvalidInputError, match=r"max_cells is 451, but .* exported for 450 "):
        draft_cache(450, max_cells=451)


def test_a_draft_needs_no_more_than_there_is() -> None:
    limits = LimitsConfig(page_size=50, max_cells=101)
    assert make_cache(limits, 4, 100, draft_max_cells=101).n_cells == 100
