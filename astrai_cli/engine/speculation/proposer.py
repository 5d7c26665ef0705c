"""What guesses the next tokens of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.task import Task


@dataclass(frozen=True, slots=True)
class Proposal:
    """Token ids that may follow an answer, int32 [n], and how sure that is.

    confidence: a small integer; proposals with the same one are accepted about equally often.
    """

    token_ids: NDArray[np.int32]
    confidence: int = 0


NOTHING = Proposal(np.empty(0, dtype=np.int32))


class Proposer(ABC):
    """Guesses how answers go on. Used by the engine thread alone.

    max_tokens: of one proposal. is_free: proposing costs next to nothing, so that it may be
    asked for more than is used. Whatever is proposed, answers stay what they are.
    """

    max_tokens: int
    is_free: bool = False

    @abstractmethod
    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        """A proposal for each answering task, of at most that count of tokens, 1 or more."""

    def forget(self, task_id: int) -> None:  # noqa: B027 (most proposers have no memory)
        """The task has ended."""
