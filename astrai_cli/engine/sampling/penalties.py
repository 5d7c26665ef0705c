"""Strategies that change the logits of certain tokens: what was said before, or biased ones.

They touch those tokens alone, so their cost grows with them and not with the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from backends.base import LogitChange


class BaseLogitStrategy(ABC):
    """Changes logits before candidates are narrowed down.

    remembers: whether what it does depends on the answer so far.
    """

    remembers: bool = True

    @abstractmethod
    def apply(self, logits: NDArray[np.float32]) -> None:
        """Change logits [vocabulary] in place."""

    @abstractmethod
    def change(self) -> LogitChange:
        """What `apply` does now, for an executor to do."""

    def observe(self, token_id: int) -> None:  # noqa: B027 (most strategies have no memory)
        """Take note of the answer's next token."""

    @abstractmethod
    def fork(self) -> BaseLogitStrategy:
        """One like this that may observe guesses, of which this one learns nothing."""


class RepetitionPenaltyStrategy(BaseLogitStrategy):
    """Divides positive logits of tokens in prompt or answer by a penalty, multiplies others by it.

    As in Keskar et al. 2019, "CTRL", in the form Hugging Face gave it for logits below 0.
    """

    def __init__(self, penalty: float, prompt: Collection[int]) -> None:
        self._penalty = np.float32(penalty)
        self._seen = set(prompt)
        self._ids = np.array(sorted(self._seen), dtype=np.int64)

    def apply(self, logits: NDArray[np.float32]) -> None:
        seen = logits[self._ids]
        logits[self._ids] = np.where(seen > 0, seen / self._penalty, seen * self._penalty)

    def change(self) -> LogitChange:
        return LogitChange(
            self._ids, float(self._penalty), np.zeros(len(self._ids), dtype=np.float32)
        )

    def observe(self, token_id: int) -> None:
        if token_id not in self._seen:
            self._seen.add(token_id)
            self._ids = np.append(self._ids, token_id)

    def fork(self) -> RepetitionPenaltyStrategy:
        other = copy(self)
        other._seen = set(self._seen)
        return other


class OccurrencePenaltyStrategy(BaseLogitStrategy):
    """Takes presence + frequency * count off the logits of tokens that the answer has.

    As in OpenAI's reference of presence_penalty and frequency_penalty.
    """

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._places: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._counts: NDArray[np.float32] = np.empty(0, np.float32)

    def apply(self, logits: NDArray[np.float32]) -> None:
        logits[self._ids] -= self._presence + self._frequency * self._counts

    def change(self) -> LogitChange:
        return LogitChange(self._ids, 1.0, -(self._presence + self._frequency * self._counts))

    def observe(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._ids))
        if place == len(self._ids):
            self._ids = np.append(self._ids, token_id)
            self._counts = np.append(self._counts, np.float32(0))
        self._counts[place] += 1

    def fork(self) -> OccurrencePenaltyStrategy:
        other = copy(self)
        other._places = dict(self._places)
        other._counts = self._counts.copy()
        return other


class LogitBiasStrategy(BaseLogitStrategy):
    """Adds a number to the logits of given tokens, each named once."""

    remembers = False

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        self._ids = np.array([token_id for token_id, _ in bias], dtype=np.int64)
        self._bias = np.array([value for _, value in bias], dtype=np.float32)

    def apply(self, logits: NDArray[np.float32]) -> None:
        logits[self._ids] += self._bias

    def change(self) -> LogitChange:
        return LogitChange(self._ids, 1.0, self._bias)

    def fork(self) -> LogitBiasStrategy:
        return self
