"""How many tokens to propose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A request for which up to n tokens can be proposed, with the proposer's confidence."""

    task_id: int
    n: int
    confidence: int = 0


class DraftPolicy(ABC):
    """Chooses the lengths of drafts."""

    @abstractmethod
    def choose(self, offers: Sequence[Offer], n_rows: int, room: int) -> list[int]:
        """How many tokens of each offer go into a step that has n_rows without them.

        All together at most `room`.
        """

    @abstractmethod
    def record(
        self,
        task_ids: Sequence[int],
        drafts: Sequence[tuple[Offer, int]],
        n_rows: int,
        seconds: float,
    ) -> None:
        """A step of n_rows besides drafts is done.

        task_ids: the requests with answers in it. drafts: what was checked, and how many
        tokens of each were right.
        """

    @abstractmethod
    def record_drafting(self, n_drafted: int, seconds: float) -> None:
        """Proposing so many tokens took that long."""

    @abstractmethod
    def forget(self, task_id: int) -> None:
        """The request has ended."""


class FullDrafts(DraftPolicy):
    """As many tokens as are offered, whether or not that pays."""

    def choose(self, offers: Sequence[Offer], n_rows: int, room: int) -> list[int]:
        counts = []
        for offer in offers:
            counts.append(min(offer.n, room))
            room -= counts[-1]
        return counts

    def record(
        self,
        task_ids: Sequence[int],
        drafts: Sequence[tuple[Offer, int]],
        n_rows: int,
        seconds: float,
    ) -> None:
        """Nothing to learn."""

    def record_drafting(self, n_drafted: int, seconds: float) -> None:
        """Nothing to learn."""

    def forget(self, task_id: int) -> None:
        """Nothing was noted of it."""
