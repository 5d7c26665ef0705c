"""The paged cache's books, held to what a reader of them may rely on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)
from numpy.typing import NDArray

from astrai_cli.engine.cache import PageCache, Storage
from astrai_cli.engine.cache.prefix import PrefixCache

PAGE = 3
PAGES = 8


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def cells(cache: PageCache, task_id: int, n: int) -> list[int]:
    view = cache.view(task_id)
    return [int(view.pages[p // PAGE]) * PAGE + p % PAGE for p in range(n)]


class PageCacheMachine(RuleBasedStateMachine):
    """Tasks come, grow, pass on and go; `content` is what the cells hold, as an executor's would.

    Few token values, long runs and a key of three bits: prefixes and keys often meet.
    """

    tasks = Bundle("tasks")
    parked = Bundle("parked")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PageCache(Storage(PAGES, PAGE), n_snapshots=1, n_capture_slots=1, key_bits=3)
        self.content: list[list[int] | None] = [None] * (PAGES * PAGE)  # the history at each cell
        self.histories: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.next_id = 0

    def new_id(self, history: list[int], n_computed: int, n_promised: int) -> int:
        self.next_id += 1
        self.histories[self.next_id] = history
        self.computed[self.next_id] = n_computed
        self.promised[self.next_id] = n_promised
        return self.next_id

    @rule(
        target=tasks,
        history=st.lists(st.integers(0, 1), min_size=1, max_size=15),
        more=st.integers(0, 2),
    )
    def start(self, history: list[int], more: int) -> object:
        before = self.cache.cells_used
        n_positions = len(history) + more
        n_reusable = len(history) - 1
        n = self.cache.allocate_task(
            self.next_id + 1, ids(*history), n_reusable, n_positions, spare=0
        )
        if n is None:
            assert self.cache.cells_used == before
            assert self.histories or before or n_positions > PAGES * PAGE
            return multiple()
        assert n <= n_reusable
        assert n % PAGE == 0
        return self.new_id(history, n, n_positions)

    @rule(task=tasks, n=st.integers(1, 7))
    def compute(self, task: int, n: int) -> None:
        history = self.histories[task]
        end = min(self.computed[task] + n, len(history))
        assume(end > self.computed[task])
        grown = self.cache.grow(task, end)
        assert grown or end > self.promised[task]
        if not grown:
            return
        others = {
            cell // PAGE
            for other in self.histories
            if other != task
            for cell in cells(self.cache, other, len(self.cache.view(other).pages) * PAGE)
        }
        for position in range(self.computed[task], end):
            cell = cells(self.cache, task, end)[position]
            assert cell // PAGE not in others, "a page is written that another task sees"
            self.content[cell] = history[: position + 1]
        self.computed[task] = end
        self.cache.record(task, ids(*history), end)

    @rule(task=tasks, n=st.integers(1, 7))
    def grow(self, task: int, n: int) -> None:
        """A step that was to run, and did not."""
        end = min(self.computed[task] + n, len(self.histories[task]))
        assert self.cache.grow(task, end) or end > self.promised[task]

    @rule(task=tasks, token=st.integers(0, 1))
    def generate(self, task: int, token: int) -> None:
        assume(self.computed[task] == len(self.histories[task]) < PAGES * PAGE)
        self.histories[task].append(token)

    @rule(task=tasks)
    def catch_up(self, task: int) -> None:
        history = self.histories[task]
        n = self.cache.catch_up(task, ids(*history), len(history) - 1)
        assert n % PAGE == 0
        self.computed[task] += n
        assert self.computed[task] < len(history) or n == 0

    @rule(target=parked, task=consumes(tasks))
    def park(self, task: int) -> int:
        return task

    @rule(
        target=tasks,
        task=consumes(parked),
        more=st.lists(st.integers(0, 1), min_size=1, max_size=6),
    )
    def go_on(self, task: int, more: list[int]) -> object:
        history = self.histories[task] + more
        n_positions = max(len(history), self.promised[task])
        if not self.cache.take_over(self.next_id + 1, task, n_positions, spare=0):
            self.free(task)
            return multiple()
        del self.histories[task]
        return self.new_id(history, self.computed.pop(task), n_positions)

    @rule(task=consumes(tasks))
    def finish(self, task: int) -> None:
        self.free(task)

    def free(self, task: int) -> None:
        self.cache.free(task)
        del self.histories[task], self.computed[task]

    @precondition(lambda self: not self.histories)
    @rule()
    def alone_anything_fits(self) -> None:
        # A snapshot may hold as many pages as its prompt had.
        free = PAGES - len(self.snapshot_pages())
        assert self.cache.allocate_task(0, ids(0), 0, free * PAGE, spare=0) == 0
        assert self.cache.grow(0, free * PAGE)
        self.cache.free(0)

    def snapshot_pages(self) -> set[int]:
        return {page for entry in self.cache._snapshots._entries for page in entry}

    @invariant()
    def every_task_finds_its_own_history(self) -> None:
        for task, history in self.histories.items():
            for position, cell in enumerate(cells(self.cache, task, self.computed[task])):
                assert self.content[cell] == history[: position + 1]

    @invariant()
    def references_are_holders_and_pages_add_up(self) -> None:
        pool = self.cache._pool
        allocator = pool._allocator
        holders = [0] * PAGES
        for task in self.histories:
            for page in self.cache.view(task).pages:
                holders[page] += 1
        for entry in self.cache._snapshots._entries:
            for page in entry:
                holders[page] += 1
        assert holders == allocator._holders
        free = {page for page in range(PAGES) if allocator._free >> page & 1}
        cached = set(allocator._cached)
        used = {page for page in range(PAGES) if holders[page]}
        assert len(free) + len(cached) + len(used) == PAGES
        assert free | cached | used == set(range(PAGES))
        assert self.cache.cells_used == len(used) * PAGE
        assert self.cache.cells_cached == len(cached) * PAGE
        assert 0 <= self.cache._n_promised <= pool.n_available

    @invariant()
    def known_pages_hold_what_they_are_known_for(self) -> None:
        prefixes = self.cache._pool._prefixes
        allocator = self.cache._pool._allocator
        for page, contents in prefixes._contents.items():
            last = self.content[page * PAGE + PAGE - 1]
            assert last is not None
            assert contents.ids == np.array(last[-PAGE:], np.int64).tobytes()
            assert not allocator._free >> page & 1
            if contents.parent >= 0:
                assert contents.parent in prefixes, "a page outlived the one it goes on from"
                assert self.content[contents.parent * PAGE + PAGE - 1] == last[:-PAGE]
            else:
                assert len(last) == PAGE


TestPageCache = PageCacheMachine.TestCase
TestPageCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def compute_all(cache: PageCache, task_id: int, history: NDArray[np.int32]) -> None:
    assert cache.grow(task_id, len(history))
    cache.record(task_id, history, len(history))


def test_one_position_at_least_is_left_to_run() -> None:
    cache = PageCache(Storage(PAGES, PAGE))
    history = ids(1, 2, 3, 4, 5, 6)
    assert cache.allocate_task(1, history, 5, 7, spare=0) == 0
    compute_all(cache, 1, history)
    assert cache.allocate_task(2, history, 5, 7, spare=0) == 3
    assert cache.allocate_task(3, ids(*history, 7), 6, 8, spare=0) == 6


def test_a_page_taken_over_is_no_longer_promised() -> None:
    cache = PageCache(Storage(4, PAGE))
    history = ids(1, 2, 3, 4)
    for task_id in (1, 2):
        assert cache.allocate_task(task_id, history, 3, 4, spare=0) == 0
    compute_all(cache, 1, history)
    assert cache.allocate_task(3, ids(9), 0, 1, spare=0) is None
    assert cache.catch_up(2, history, 3) == 3
    assert cache.allocate_task(3, ids(9), 0, 1, spare=0) == 0


def test_a_task_with_a_page_of_its_own_for_the_next_positions_computes_them() -> None:
    cache = PageCache(Storage(4, PAGE))
    history = ids(1, 2, 3, 4)
    for task_id in (1, 2):
        cache.allocate_task(task_id, history, 3, 4, spare=0)
    assert cache.grow(2, 1)
    compute_all(cache, 1, history)
    assert cache.catch_up(2, history, 3) == 0


def test_equal_pages_become_one_when_they_are_full() -> None:
    cache = PageCache(Storage(PAGES, PAGE))
    history = ids(1, 2, 3, 4)
    for task_id in (1, 2):
        cache.allocate_task(task_id, history, 3, 5, spare=0)
    for task_id in (1, 2):
        compute_all(cache, task_id, history)
    assert cache.view(1).pages[0] == cache.view(2).pages[0]
    assert cache.view(1).pages[1] != cache.view(2).pages[1]
    assert cache.cells_used == 3 * PAGE


def test_the_page_released_first_is_given_up_first_and_children_before_parents() -> None:
    cache = PageCache(Storage(4, PAGE))
    old, new = ids(1, 1, 1, 2, 2, 2), ids(5, 5, 5, 6, 6, 6)
    for task_id, history in ((1, old), (2, new)):
        cache.allocate_task(task_id, history, 0, 6, spare=0)
        compute_all(cache, task_id, history)
        cache.free(task_id)
    assert cache.cells_cached == 12
    cache.allocate_task(3, ids(9), 0, 3, spare=0)
    assert cache.grow(3, 3)
    for task_id, history, n_cached in ((4, old, 3), (5, new, 6)):
        assert cache.allocate_task(task_id, ids(*history, 0), 6, 6, spare=0) == n_cached
        cache.free(task_id)


def test_a_snapshot_keeps_its_pages_when_others_are_given_up() -> None:
    prompt = ids(1, 1, 1, 2, 2, 2)
    kept = []
    for n_snapshots in (0, 1):
        cache = PageCache(Storage(4, PAGE), n_snapshots=n_snapshots, n_capture_slots=n_snapshots)
        cache.allocate_task(1, prompt, 5, 6, spare=0)
        compute_all(cache, 1, prompt)
        cache.free(1)
        for first in (100, 200):
            answer = np.arange(first, first + 6, dtype=np.int32)
            assert cache.allocate_task(first, answer[:1], 0, 2, spare=0) == 0
            compute_all(cache, first, answer)
            cache.free(first)
        kept.append(cache.allocate_task(4, ids(*prompt, 3), 6, 6, spare=0))
    assert kept == [0, 6]


def test_the_snapshot_used_last_stays_and_the_longer_replaces_the_shorter() -> None:
    cache = PageCache(Storage(20, PAGE), n_snapshots=2, n_capture_slots=1)
    short, other, longer = ids(1, 1, 1), ids(2, 2, 2), ids(1, 1, 1, 3, 3, 3)
    for task_id, prompt in enumerate((short, other, longer, ids(4, 4, 4))):
        cache.allocate_task(task_id, prompt, len(prompt) - 1, len(prompt) + 1, spare=0)
        compute_all(cache, task_id, prompt)
        cache.free(task_id)
    assert cache.cells_used == 3 * PAGE
    assert cache.cells_cached == PAGE


def test_keys_roll_on_from_page_to_page() -> None:
    prefixes = PrefixCache(page_size=4)
    history = np.arange(12, dtype=np.int32)
    whole: list[int] = []
    prefixes.extend_keys(whole, history, 3)
    by_page: list[int] = []
    for n_pages in (1, 2, 3):
        prefixes.extend_keys(by_page, history, n_pages)
    expected, key = [], 0
    for index, value in enumerate(history):
        key = (key * 0x9E3779B97F4A7C15 + int(value) + 1) % 2**64
        if index % 4 == 3:
            expected.append(key)
    assert whole == by_page == expected


@pytest.mark.parametrize("key_bits", [0, 64])
def test_a_key_alone_proves_nothing(key_bits: int) -> None:
    prefixes = PrefixCache(page_size=1, key_bits=key_bits)
    assert prefixes.insert(4, key=8, parent=-1, ids=b"x")
    assert prefixes.find(8, -1, b"x") == 4
    assert prefixes.find(8, -1, b"y") is None
    assert prefixes.find(8, 3, b"x") is None
    assert prefixes.insert(5, key=9, parent=-1, ids=b"z") == (key_bits == 64)
