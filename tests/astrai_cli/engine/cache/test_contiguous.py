import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.engine.cache import ContiguousCache

PROMPT = np.array([1, 2, 3], np.int32)


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_slots_are_never_shared_lost_or_exceeded(
    n_slots: int, actions: list[tuple[bool, int]]
) -> None:
    cache = ContiguousCache(n_slots, max_context=8)
    held: set[int] = set()
    for allocate, task_id in actions:
        if allocate and task_id not in held:
            n_cached = cache.allocate_task(task_id, PROMPT, 2, 8, spare=0)
            assert n_cached == (0 if len(held) < n_slots else None)
            if n_cached is not None:
                held.add(task_id)
        elif not allocate and task_id in held:
            cache.free(task_id)
            held.remove(task_id)
        pages = [int(cache.view(each).pages[0]) for each in held]
        assert len(set(pages)) == len(pages)
        assert all(0 <= page < n_slots for page in pages)
        assert cache.cells_used == 8 * len(held)
    assert cache.n_cells == 8 * n_slots


def test_a_slot_passes_from_a_task_to_the_next_of_its_session() -> None:
    cache = ContiguousCache(1, max_context=8)
    assert cache.allocate_task(1, PROMPT, 2, 4, spare=0) == 0
    assert cache.take_over(2, 1, 8, spare=0)
    assert cache.grow(2, 8)
    cache.free(2)
    assert cache.cells_used == 0
