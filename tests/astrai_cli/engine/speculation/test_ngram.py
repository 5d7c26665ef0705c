"""The suffix index finds what a search of the whole text finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.engine.speculation.ngram import MAX_MATCH, MIN_MATCH, SuffixIndex

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def longest_match(tokens: list[int]) -> int:
    """The length of the longest earlier match of the end, by trying all places."""

    def length(place: int) -> int:
        n = 0
        while n < min(place, MAX_MATCH) and tokens[place - 1 - n] == tokens[-1 - n]:
            n += 1
        return n

    longest = max((length(place) for place in range(1, len(tokens))), default=0)
    return longest if longest >= MIN_MATCH else 0


def index_of(tokens: list[int], room: int = 64) -> tuple[SuffixIndex, np.ndarray]:
    history = np.full(room, -1, dtype=np.int32)
    history[: len(tokens)] = tokens
    return SuffixIndex(history), history


@given(few_tokens)
def test_a_match_is_one_and_whoever_is_built_at_once_finds_the_same(tokens: list[int]) -> None:
    at_once, _ = index_of(tokens)
    at_once.extend(len(tokens))
    by_token, history = index_of(tokens)
    for n in range(1, len(tokens) + 1):
        by_token.extend(n)
    place, length = found = at_once.find()
    assert found == by_token.find()
    # Only the latest places are looked at, so there may be a longer match.
    assert bool(length) == bool(longest_match(tokens))
    assert length <= longest_match(tokens)
    end = len(tokens)
    assert (history[place - length : place] == history[end - length : end]).all()
    assert place < end


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(MIN_MATCH, 40))
def test_the_longest_of_a_few_matches_is_found(noise: list[int], n: int) -> None:
    phrase = list(range(100, 100 + n))
    tokens = [*phrase, 7, *noise, *phrase[-MIN_MATCH:], 8, *noise, *phrase]
    index, _ = index_of(tokens, room=len(tokens))
    index.extend(len(tokens))
    assert index.find() == (n, min(n, MAX_MATCH)) or n == MIN_MATCH


def test_memory_does_not_grow_with_the_text() -> None:
    index = SuffixIndex(np.zeros(131072, dtype=np.int32))
    index.extend(131072)
    assert index._latest.nbytes + index._before.nbytes == 2**18 + 4 * 131072
