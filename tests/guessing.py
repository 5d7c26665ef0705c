"""A proposer for tests that knows how answers go on, and errs as often as it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from astrai_cli.engine.speculation import Proposal, Proposer
from astrai_cli.engine.task import Task


class GuessingProposer(Proposer):
    """Guesses from known answers, by their prompts; each token is right with `accuracy`."""

    is_free = True

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        accuracy: float,
        max_tokens: int = 5,
        vocab_size: int = 256,
    ) -> None:
        self.max_tokens = max_tokens
        self._answers = answers
        self._accuracy = accuracy
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)

    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        return [self._propose(task, n) for task, n in zip(tasks, counts, strict=True)]

    def _propose(self, task: Task, n: int) -> Proposal:
        answer = self._answers[tuple(task.history[: task.n_prompt].tolist())]
        n_said = task.n_known - task.n_prompt
        guesses = np.array([*answer[n_said : n_said + n]], dtype=np.int32)
        wrong = self._random.random(len(guesses)) >= self._accuracy
        guesses[wrong] = (guesses[wrong] + 1) % self._vocab_size
        return Proposal(guesses)
