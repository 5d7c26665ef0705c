"""Block drafts on the cuda backend, on the processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from draft_numbers import DraftNumbers, Floats, OpenDrafting
from draft_suite import DraftSuite, OpenEngine
from host_waits import HostWaits
from muse_fixtures import CHAT_DRAFT, CHAT_MMPROJ, CHAT_MODEL, DRAFT, Q4_K_M
from step_texts import random_tokens

from astrai_cli import load
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.errors import ExecutionError
from backends.base import Executor, SequenceStep, Step
from backends.cuda.checks import DRAFT_SPEC, SPEC, random_decoder, random_draft
from backends.cuda.draft import CudaDraft
from backends.cuda.graphs import Prepared
from backends.cuda.inputs import Layout
from backends.drafting import DraftingExecutor, DraftOwner, DraftStep
from backends.eager.draft import EagerDraft

CPU = torch.device("cpu")
CELLS, PAGE_SIZE = 256, 8
STARTS = (50, 1, 32, 7, 8, 63)


class TestCudaDrafts(DraftSuite):
    every = 5

    @pytest.fixture(scope="class")
    @classmethod
    def open_engine(cls, export: Any) -> OpenEngine:
        folder = export(CHAT_MODEL, CHAT_MMPROJ, draft_gguf=CHAT_DRAFT)

        def open_(**limits: Any) -> InferenceEngine:
            return load(folder, device="cpu", threads=1, max_context=1024, page_size=8, **limits)

        return open_


class TestCudaNumbers(DraftNumbers):
    @pytest.fixture(scope="class")
    @classmethod
    def open_drafting(cls, export: Any, open_cuda: Callable[..., Any]) -> OpenDrafting:
        return lambda model, draft: open_cuda(export(model, draft_gguf=draft), dflash=True)

    @torch.inference_mode()
    def hidden_and_logits(self, executor: Any, step: DraftStep) -> tuple[Floats, Floats]:
        hidden = executor._draft.hidden(step)[0, 1:]
        return hidden.numpy(), executor._decoder.output(hidden).numpy()


class Pair:
    """One random draft, as the backend runs it and as the reference does, with one context."""

    def __init__(self) -> None:
        self.target = random_decoder(CPU, torch.float32)
        draft = random_draft(CPU, torch.float32)
        self.ours = CudaDraft(draft, self.target, n_tokens=5, max_owners=len(STARTS))
        self.reference = EagerDraft(draft)
        self.ours.allocate(CELLS, SPEC.context_length)
        self.reference.allocate(CELLS)
        positions = torch.arange(CELLS, dtype=torch.int32) % 64
        taps = torch.randn(CELLS, SPEC.width)
        for each in (self.ours, self.reference):
            each.tap(DRAFT_SPEC.taps[0], taps)
            each.keep(positions, torch.arange(CELLS))


@pytest.fixture(scope="module")
def pair() -> Pair:
    with torch.inference_mode():
        return Pair()


def blocks(n_owners: int, block: int) -> DraftStep:
    """Blocks behind contexts in pages of no order, some of which are shared."""
    pages = np.random.default_rng(n_owners).integers(0, 32, (n_owners, 8), np.int32)
    owners = [DraftOwner(n + 3, STARTS[n], own) for n, own in enumerate(pages)]
    return DraftStep(owners, block, PAGE_SIZE)


@torch.inference_mode()
@pytest.mark.parametrize("block", [2, 6, 12])
@pytest.mark.parametrize("n_owners", range(1, len(STARTS) + 1))
def test_blocks_are_those_of_the_reference(pair: Pair, n_owners: int, block: int) -> None:
    step = blocks(n_owners, block)
    expected = pair.reference.hidden(step, pair.target)
    torch.testing.assert_close(pair.ours.hidden(step), expected, rtol=1e-4, atol=1e-5)
    proposed = pair.reference.propose(step, pair.target)
    np.testing.assert_array_equal(pair.ours.propose(step), proposed)


@torch.inference_mode()
def test_few_owners_are_padded_to_what_is_prepared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    load_layout = Prepared.load

    def watch(self: Prepared, layout: Layout) -> Any:
        rows.append(layout.n_rows)
        return load_layout(self, layout)

    monkeypatch.setattr(Prepared, "load", watch)
    for n_owners in range(1, 6):
        pair.ours.propose(blocks(n_owners, 6))
    pair.ours.propose(blocks(1, 5))
    # Five owners, and blocks of another size, run as they come.
    assert rows == [6, 12, 24, 24]


@torch.inference_mode()
def test_a_draft_changes_no_cell_of_the_context(pair: Pair) -> None:
    pool = pair.ours.pool
    before = [cells[: CELLS + 1].clone() for cells in (*pool.keys, *pool.values)]
    for n_owners in (3, 6):
        pair.ours.propose(blocks(n_owners, 12))
    for old, new in zip(before, (*pool.keys, *pool.values), strict=True):
        assert torch.equal(old, new[: CELLS + 1])


@pytest.fixture
def executor(export: Any, open_cuda: Callable[..., Executor]) -> Any:
    artifact = export(Q4_K_M, draft_gguf=DRAFT)
    with closing(open_cuda(artifact, dflash=True, dflash_n_draft=3)) as executor:
        executor.allocate(CELLS)
        prompt = SequenceStep(random_tokens(9), 0, np.arange(2, dtype=np.int32), 0)
        executor.step(Step([prompt], PAGE_SIZE))
        yield executor


def drafted(n_owners: int, block: int) -> DraftStep:
    return DraftStep([DraftOwner(5, 9, np.arange(2, dtype=np.int32))] * n_owners, block, PAGE_SIZE)


@pytest.mark.parametrize(("n_owners", "block"), [(1, 4), (3, 4), (6, 4), (2, 3)])
def test_the_host_waits_once_in_a_draft(
    executor: DraftingExecutor, n_owners: int, block: int
) -> None:
    with HostWaits() as waits:
        proposed = executor.draft(drafted(n_owners, block))
    assert waits.found == {"cpu": 1, "numpy": 1}
    assert proposed.shape == (n_owners, block - 1)
    assert (proposed == proposed[0]).all()


def test_cells_can_be_allocated_anew(executor: DraftingExecutor) -> None:
    executor.allocate(2 * CELLS)
    assert executor.draft(drafted(2, 4)).shape == (2, 3)
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        executor.draft(drafted(2, 4))


def test_a_draft_that_fails_is_told(
    executor: DraftingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("the device is gone\nFor debugging consider this and that.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
    with pytest.raises(ExecutionError, match=r"the device is gone$"):
        executor.draft(drafted(1, 4))
