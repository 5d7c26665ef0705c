"""Drafts of a chosen quality, for sizing: from answers that are known, with errors put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from astrai_cli.engine.speculation import Proposal, Proposer
from astrai_cli.engine.task import Task


class ReplayProposer(Proposer):
    """Proposes what follows in known answers, found by their prompts.

    Each token is right with the probability `accuracy`. Nothing is proposed for a prompt
    that is not known.
    """

    is_free = True

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        accuracy: float,
        max_tokens: int = 5,
        vocab_size: int = 256,
    ) -> None:
        self.max_tokens = max_tokens
        self.answers = answers
        self._accuracy = accuracy
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)

    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        return [self._propose(task, n) for task, n in zip(tasks, counts, strict=True)]

    def _propose(self, task: Task, n: int) -> Proposal:
        answer = self.answers.get(tuple(task.history[: task.n_prompt].tolist()), ())
        n_said = task.n_known - task.n_prompt
        guesses = np.array([*answer[n_said : n_said + n]], dtype=np.int32)
        wrong = self._random.random(len(guesses)) >= self._accuracy
        guesses[wrong] = (guesses[wrong] + 1) % self._vocab_size
        return Proposal(guesses)
