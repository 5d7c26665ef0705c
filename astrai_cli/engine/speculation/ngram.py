"""Proposals from what the prompt and the answer said before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.speculation.proposer import NOTHING, Proposal, Proposer
from astrai_cli.engine.task import Task

MIN_MATCH = 3
MAX_MATCH = 32
# Earlier places that are looked at, the latest first.
_MAX_PLACES = 16
_MAX_TABLE_BITS = 16
_FACTORS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D], dtype=np.uint64)
_MASK = 2**32 - 1


class SuffixIndex:
    """Finds where the last tokens of a sequence stood before.

    A hash of MIN_MATCH tokens leads to the last place behind them, and each place to the one
    before it with the same hash, as in LZ77 compressors. So a token costs the same however
    long the sequence is, and the memory is 4 bytes a position and at most 256 KiB.
    """

    def __init__(self, history: NDArray[np.int32]) -> None:
        """history: int32 [room], to which tokens are appended from outside."""
        self._history = history
        bits = min(_MAX_TABLE_BITS, max(4, len(history).bit_length()))
        self._shift = 32 - bits
        self._latest: NDArray[np.int32] = np.full(2**bits, -1, dtype=np.int32)
        self._before: NDArray[np.int32] = np.full(len(history), -1, dtype=np.int32)
        self._n = 0  # places before this one are in the index

    def extend(self, n_known: int) -> None:
        """Take in the tokens up to n_known, but for the place behind the last of them."""
        if n_known == self._n + 1 and self._n >= MIN_MATCH:
            self._insert(self._n, self._hash_of_last(self._n))
        else:
            self._insert_all(n_known)
        self._n = n_known

    def find(self) -> tuple[int, int]:
        """The place behind the longest earlier match of the last tokens, and the match's length.

        Of equally long ones the latest. A length of 0 where there is none.
        """
        best, longest = 0, 0
        if self._n < MIN_MATCH:
            return best, longest
        place = int(self._latest[self._hash_of_last(self._n)])
        for _ in range(_MAX_PLACES):
            if place < 0 or longest == MAX_MATCH:
                break
            length = self._match(place)
            if length > longest:
                best, longest = place, length
            place = int(self._before[place])
        return (best, longest) if longest >= MIN_MATCH else (0, 0)

    def _match(self, place: int) -> int:
        """How many tokens before `place` are those at the end."""
        width = min(MAX_MATCH, place)
        earlier = self._history[place - width : place]
        differs = earlier != self._history[self._n - width : self._n]
        last = differs[::-1].argmax()
        return int(last) if differs[width - 1 - last] else width

    def _hash_of_last(self, end: int) -> int:
        """Of the MIN_MATCH tokens before `end`."""
        tokens = self._history[end - MIN_MATCH : end].tolist()
        total = sum(token * factor for token, factor in zip(tokens, _FACTORS.tolist(), strict=True))
        return int((total & _MASK) >> self._shift)

    def _insert(self, place: int, key: int) -> None:
        self._before[place] = self._latest[key]
        self._latest[key] = place

    def _insert_all(self, end: int) -> None:
        """Insert all places from the first one that is missing to the one before `end`."""
        places = np.arange(max(self._n, MIN_MATCH), end, dtype=np.int32)
        if not len(places):
            return
        tokens = self._history[places[0] - MIN_MATCH : end - 1].astype(np.uint64)
        n = len(places)
        total = sum(tokens[i : i + n] * factor for i, factor in enumerate(_FACTORS))
        keys = ((total & np.uint64(_MASK)) >> np.uint64(self._shift)).astype(np.int64)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        is_first = np.ones(n, dtype=bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        before = np.empty(n, dtype=np.int32)
        before[1:] = places[order[:-1]]
        before[is_first] = self._latest[ordered[is_first]]
        self._before[places[order]] = before
        self._latest[keys] = places


class NGramProposer(Proposer):
    """Proposes what followed the longest earlier match of the last tokens.

    A proposal that reaches the end of what there is goes on as that would repeat itself.
    """

    is_free = True

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._indexes: dict[int, SuffixIndex] = {}

    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        return [self._propose(task, n) for task, n in zip(tasks, counts, strict=True)]

    def forget(self, task_id: int) -> None:
        self._indexes.pop(task_id, None)

    def _propose(self, task: Task, n: int) -> Proposal:
        index = self._indexes.get(task.id)
        if index is None:
            index = self._indexes[task.id] = SuffixIndex(task.history)
        index.extend(task.n_known)
        place, length = index.find()
        if not length:
            return NOTHING
        followed = task.history[place : task.n_known]
        return Proposal(np.resize(followed, n), confidence=length.bit_length())
