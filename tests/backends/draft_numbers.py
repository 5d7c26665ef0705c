"""What a block draft computes on every backend, end to end: context from the target's own steps.

A backend's test module subclasses `DraftNumbers`, gives the fixture `open_drafting`, and says how
the numbers behind a proposal are seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from muse_fixtures import CHAT_DRAFT, CHAT_MODEL, DRAFT, TINY, distance, optional_model
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from backends.base import SequenceStep, Step
from backends.drafting import DraftOwner, DraftStep
from backends.registry import get_backend

Floats = NDArray[np.float32]
OpenDrafting = Callable[[Path, Path], Any]
"""open(model, draft): a DraftingExecutor, in float32."""

CONTEXT, BLOCK, PAGE_SIZE = 40, 8, 16


class DraftNumbers(ABC):
    """The suite. tolerance: relative, over all rows of a block but its anchor's."""

    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def hidden_and_logits(self, executor: Any, step: DraftStep) -> tuple[Floats, Floats]:
        """[block - 1, width], and [block - 1, vocabulary] before scale and cap; of one owner."""

    def numbers(self, executor: Any) -> tuple[Floats, Floats]:
        """Those behind a draft after the reference's first tokens."""
        with np.load(TINY / "reference.npz") as arrays:
            tokens = arrays["input_ids"].astype(np.int32)
        pages = np.array([3, 1, 2, 0], np.int32)
        with closing(executor):
            executor.allocate(4 * PAGE_SIZE)
            for begin, end in ((0, 7), (7, 39), (39, 40)):
                share = SequenceStep(tokens[begin:end], begin, pages, 1)
                executor.step(Step([share], PAGE_SIZE))
            owner = DraftOwner(int(tokens[CONTEXT]), CONTEXT, pages)
            step = DraftStep([owner], BLOCK, PAGE_SIZE)
            hidden, logits = self.hidden_and_logits(executor, step)
            assert executor.draft(step).tolist() == [logits.argmax(axis=1).tolist()]
        return hidden, logits

    def test_numbers_are_the_reference_s(self, open_drafting: OpenDrafting) -> None:
        reference = np.load(optional_model("tiny-muse/reference.npz"))
        model = optional_model("tiny-muse/tiny-muse-bf16.gguf")
        hidden, logits = self.numbers(open_drafting(model, DRAFT))
        assert distance(hidden, reference["draft_hidden"][1:]) < self.tolerance
        assert distance(logits, reference["draft_lm_head"][1:]) < self.tolerance

    def test_numbers_are_the_eager_backend_s(self, open_drafting: OpenDrafting) -> None:
        """Which are another implementation's, by the test above."""
        hidden, logits = self.numbers(open_drafting(CHAT_MODEL, CHAT_DRAFT))
        expected_hidden, expected_logits = eager_numbers()
        assert distance(hidden, expected_hidden) < self.tolerance
        assert distance(logits, expected_logits) < self.tolerance


def open_eager(model: Path, draft: Path) -> Any:
    return get_backend("eager").open(model, LimitsConfig(draft_gguf=draft, dflash=True, threads=1))


class EagerNumbers(DraftNumbers):
    @torch.inference_mode()
    def hidden_and_logits(self, executor: Any, step: DraftStep) -> tuple[Floats, Floats]:
        hidden = executor._draft.hidden(step, executor._decoder)[0, 1:]
        return hidden.numpy(), executor._decoder.output(hidden).numpy()


@cache
def eager_numbers() -> tuple[Floats, Floats]:
    return EagerNumbers().numbers(open_eager(CHAT_MODEL, CHAT_DRAFT))
