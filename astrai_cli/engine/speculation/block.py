"""Proposals from the block draft of the executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.speculation.proposer import Proposal, Proposer
from astrai_cli.engine.task import Task
from astrai_cli.errors import InvalidInputError
from backends.base import Executor
from backends.drafting import DraftingExecutor, DraftOwner, DraftStep


class BlockProposer(Proposer):
    """Drafts blocks of one size for all answers together."""

    def __init__(self, executor: Executor, cache: KVCache, n_draft: int) -> None:
        """n_draft: tokens of a proposal; 0 for the most that the executor can.

        Raises InvalidInputError for more, and where the executor has no draft.
        """
        spec = executor.info.draft
        if spec is None or not isinstance(executor, DraftingExecutor):
            raise InvalidInputError(
                "dflash is on, and the model has no block draft: name one with --draft-gguf FILE",
                param="dflash",
            )
        if n_draft > spec.max_tokens:
            raise InvalidInputError(
                f"dflash_n_draft is {n_draft}; the draft was exported for blocks of "
                f"{spec.max_block}, so it guesses at most {spec.max_tokens}",
                param="dflash_n_draft",
            )
        self.max_tokens = n_draft or spec.max_tokens
        self._executor = executor
        self._cache = cache

    def propose(self, tasks: Sequence[Task], counts: Sequence[int]) -> list[Proposal]:
        owners = [
            DraftOwner(
                int(task.history[task.n_known - 1]),
                task.n_known - 1,
                self._cache.view(task.id).pages,
            )
            for task in tasks
        ]
        at_once = self._executor.info.max_draft_owners
        rows = [
            row
            for first in range(0, len(owners), at_once)
            for row in self._draft(owners[first : first + at_once])
        ]
        return [Proposal(row[:n]) for row, n in zip(rows, counts, strict=True)]

    def _draft(self, owners: Sequence[DraftOwner]) -> NDArray[np.int32]:
        # A smaller block would be another question to the draft, with worse answers.
        step = DraftStep(owners, self.max_tokens + 1, self._cache.page_size)
        return self._executor.draft(step)
