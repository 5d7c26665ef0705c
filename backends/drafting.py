"""What an executor with a block draft must do besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.draft_spec import DraftSpec
from backends.base import Executor, ExecutorInfo


@dataclass(frozen=True, slots=True)
class DraftOwner:
    """A sequence for which a block is drafted.

    anchor: its last token, at position `start`, which is in no cell yet; all earlier
    positions were run by `step`. pages: as in SequenceStep, for those.
    """

    anchor: int
    start: int
    pages: NDArray[np.int32]

    def context_cells(self, page_size: int) -> NDArray[np.int64]:
        """The cells of all positions before the anchor, in their order."""
        positions = np.arange(self.start)
        pages = self.pages[positions // page_size].astype(np.int64)
        cells: NDArray[np.int64] = pages * page_size + positions % page_size
        return cells


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A block of `block` tokens, 2 … max_block, for each owner: its anchor and masks."""

    owners: Sequence[DraftOwner]
    block: int
    page_size: int


@runtime_checkable
class DraftingExecutor(Executor, Protocol):
    """One opened with a block draft: `info.draft` is its spec.

    Its steps also give each token a row of the draft's context, whose keys and values are in
    the cell of the token's own. So whoever has a sequence's cells can draft for it.
    """

    def draft(self, step: DraftStep) -> NDArray[np.int32]:
        """The tokens proposed behind each anchor: int32 [owners, block - 1].

        Nothing is written. Raises InvalidInputError for a step outside the bounds and
        ExecutionError when the backend fails.
        """


def check_draft(step: DraftStep, info: ExecutorInfo, cells: int) -> DraftSpec:
    """The draft's spec, for a step that it can run; raises InvalidInputError for another."""
    spec = info.draft
    if spec is None:
        raise InvalidInputError("this model was opened without a draft")
    if not 1 <= len(step.owners) <= info.max_draft_owners:
        raise InvalidInputError(
            f"a draft has {len(step.owners)} owners; it must have 1 to {info.max_draft_owners}"
        )
    if step.page_size < 1:
        raise InvalidInputError(f"page size {step.page_size} is below 1")
    if not 2 <= step.block <= spec.max_block:
        raise InvalidInputError(
            f"a draft's block is {step.block}; it must be 2 to {spec.max_block}"
        )
    last_page = cells // step.page_size - 1
    for index, owner in enumerate(step.owners):
        n_pages = -(-owner.start // step.page_size)
        if not 1 <= owner.start < info.max_context or len(owner.pages) < n_pages:
            raise InvalidInputError(
                f"owner {index} of the draft has its anchor at {owner.start} behind "
                f"{len(owner.pages)} pages, of a context of {info.max_context}"
            )
        if not 0 <= owner.anchor < info.spec.vocab_size:
            raise InvalidInputError(
                f"token id {owner.anchor} is outside the vocabulary of {info.spec.vocab_size}"
            )
        seen = owner.pages[:n_pages]
        if seen.min() < 0 or seen.max() > last_page:
            raise InvalidInputError(f"owner {index} of the draft has pages outside {cells} cells")
    return spec
