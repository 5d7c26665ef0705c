"""What is the cuda executor's own, beside the conformance suites; on the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host_waits import HostWaits
from image_conformance import CELLS, encode, random_image
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M
from step_texts import random_tokens

from astrai_cli import load
from astrai_cli.errors import BackendUnavailableError, ExecutionError, InvalidInputError
from backends.base import (
    ALL_TOKENS,
    Draw,
    EmbeddingSpan,
    LaunchingExecutor,
    LogitChange,
    SequenceStep,
    Step,
)
from backends.cuda import forward
from backends.cuda.attention import CellPool
from backends.cuda.checks import SPEC, random_decoder
from backends.cuda.inputs import Layout
from backends.registry import default_backend, get_backend

OpenCuda = Callable[..., LaunchingExecutor]
PAGE_SIZE = 64


@pytest.fixture
def executor(export: Any, open_cuda: OpenCuda) -> Iterator[LaunchingExecutor]:
    with closing(open_cuda(export(Q4_K_M, MMPROJ))) as executor:
        executor.allocate(CELLS)
        yield executor


def one_token_each(n: int, **fields: Any) -> Step:
    """The next token of n sequences that have none yet."""
    tokens = random_tokens(n)
    pages = np.arange(n, dtype=np.int32)
    return Step([SequenceStep(tokens[[i]], 0, pages[[i]], **fields) for i in range(n)], PAGE_SIZE)


def mixed(executor: LaunchingExecutor) -> Step:
    """Answers that are drawn in every way beside prompts, one of them with an image."""
    image = encode(executor, IMAGE.read_bytes())
    some = np.array([3, 9], dtype=np.int64)
    draws = [
        Draw(0.0),
        Draw(1.1, 40, 0.9, 0.02, 0.3),
        Draw(0.8, ALL_TOKENS, 0.7, 0.0, 0.9),
        Draw(1.0, 9, uniform=0.5, changes=(LogitChange(some, 1.3, np.ones(2, np.float32)),)),
    ]
    pages = np.arange(8, dtype=np.int32)
    answers = [
        SequenceStep(random_tokens(1, n), 0, pages[[n]], 1, draws=(draw,))
        for n, draw in enumerate(draws)
    ]
    prompts = [
        SequenceStep(random_tokens(30, 5), 0, pages[[5]], 2),
        SequenceStep(random_tokens(20, 6), 0, pages[[6]], 0, (EmbeddingSpan(2, image),)),
    ]
    return Step([*prompts, *answers], PAGE_SIZE)


@pytest.mark.parametrize("n", [1, 3, 4, 31])
def test_prepared_steps_are_padded_to_their_size(
    executor: LaunchingExecutor, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    sizes = []
    run = forward.StaticForward.__call__

    def watch(self: forward.StaticForward, layout: Layout, drawn: torch.Tensor) -> Any:
        sizes.append((self.size, layout.n_rows))
        assert set(layout.rows[2, n:]) <= {CELLS}
        return run(self, layout, drawn)

    monkeypatch.setattr(forward.StaticForward, "__call__", watch)
    padded = executor.step(one_token_each(n)).logits
    expected = 2 ** (n - 1).bit_length()
    assert sizes == [(expected, expected)]
    monkeypatch.setattr(executor, "_static", [])
    np.testing.assert_allclose(executor.step(one_token_each(n)).logits, padded, atol=1e-5)


def test_wider_steps_run_as_they_come(export: Any, open_cuda: OpenCuda) -> None:
    with closing(open_cuda(export(Q4_K_M, forward_sizes=(2,)))) as executor:
        executor.allocate(CELLS)
        wide = executor.step(one_token_each(9)).logits.copy()
        narrow = executor.step(one_token_each(2)).logits
        np.testing.assert_allclose(narrow, wide[:2], atol=1e-5)


def test_warming_up_changes_no_cell() -> None:
    decoder = random_decoder(torch.device("cpu"), torch.float32)
    pool = CellPool(SPEC, 200, torch.float32, torch.device("cpu"))
    with torch.inference_mode():
        forward.warm_up(decoder, pool)
    for cells in (*pool.keys, *pool.values):
        assert not cells[:200].any()
        assert cells[200].any()


def test_the_host_waits_once_in_a_step(executor: LaunchingExecutor) -> None:
    """Where the result is copied; the rest is queued, whatever is in the step."""
    executor.allocate(70 * PAGE_SIZE)
    steps = [
        mixed(executor),
        one_token_each(5),
        one_token_each(5, draws=(Draw(0.0),)),
        one_token_each(3, draws=(Draw(1.0, 50, 0.9, 0.05, 0.4),)),
        one_token_each(70),
    ]
    for step in steps:
        with HostWaits() as waits:
            running = executor.launch(step)
            assert not waits.found
            running.result()
        assert waits.found == {"numpy": 1}


def test_the_watch_sees_what_waits() -> None:
    x = torch.arange(4.0)
    with HostWaits() as waits:
        bool(x[0] > 1)
        x[x > 1]
        x.tolist()
        torch.where(x > 2)
    assert len(waits.found) >= 4


def test_draws_beside_rows_of_logits(executor: LaunchingExecutor) -> None:
    step = mixed(executor)
    output = executor.step(step)
    assert output.logits.shape == (2, executor.info.spec.vocab_size)
    assert len(output.tokens) == 4
    greedy = executor.step(Step([step.sequences[2]], PAGE_SIZE)).tokens
    assert greedy[0] == output.tokens[0]


def test_an_export_for_logits_draws_nothing(export: Any, open_cuda: OpenCuda) -> None:
    with closing(open_cuda(export(Q4_K_M, logits=True))) as executor:
        executor.allocate(CELLS)
        with pytest.raises(InvalidInputError, match="at most 0"):
            executor.step(one_token_each(1, draws=(Draw(0.0),)))


def test_a_step_without_memory_harms_no_other(
    executor: LaunchingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = executor.step(one_token_each(3)).logits.copy()
    with monkeypatch.context() as patch:

        def fail(*args: object, **options: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        patch.setattr("backends.cuda.executor.run_others", fail)
        with pytest.raises(ExecutionError, match=rf"6 sequences beside {CELLS} cells of \d+ bytes"):
            executor.step(mixed(executor))
    np.testing.assert_array_equal(executor.step(one_token_each(3)).logits, expected)


def test_an_image_without_memory(
    executor: LaunchingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.functional, "gelu", fail)
    with pytest.raises(ExecutionError, match="no memory for an image of 84 × 28 pixels"):
        executor.encode_image(random_image(1, 3))


def test_other_failures_are_told(
    executor: LaunchingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("the device is gone\nFor debugging consider this and that.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
    with pytest.raises(ExecutionError, match=r"the device is gone$"):
        executor.step(one_token_each(1))
    with pytest.raises(ExecutionError, match="the device is gone"):
        executor.encode_image(random_image(1, 1))


def test_more_cells_than_memory(executor: LaunchingExecutor) -> None:
    with pytest.raises(InvalidInputError, match=f"no memory for {2**50} cells of"):
        executor.allocate(2**50)


def test_a_closed_executor_runs_nothing(executor: LaunchingExecutor) -> None:
    executor.close()
    for use in (
        lambda: executor.step(one_token_each(1)),
        lambda: executor.allocate(5),
        lambda: executor.encode_image(random_image(1, 1)),
    ):
        with pytest.raises(ExecutionError, match="closed"):
            use()


def test_a_tower_that_was_not_exported(export: Any, open_cuda: OpenCuda) -> None:
    with pytest.raises(InvalidInputError, match="export the model with --mmproj"):
        open_cuda(export(Q4_K_M), mmproj=MMPROJ)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_decode_sequences": 60, "prefix_cache_entries": 8, "max_context": 64},
            "60 sequences, 8 snapshots and 2 capture slots are 70 sessions, .* at most 64",
        ),
        (
            {"max_decode_sequences": 8, "max_context": 512},
            "max_cells is 4096, but 8 sequences, 0 snapshots and 0 capture slots of 512 cells "
            "each, and one for padded writes, need 4097",
        ),
        (
            {"max_decode_sequences": 2, "max_context": 256, "max_cells": 500},
            "max_cells is 500, but 2 sequences, .* of 256 cells each, .* need 513",
        ),
        ({"max_cells": 5000, "max_context": 64}, "max_cells is 5000, but .* exported for 4096"),
    ],
    ids=["sessions", "cells of the export", "cells of the server", "more than exported"],
)
def test_every_session_reserves_a_whole_context(
    export: Any, limits: dict[str, Any], message: str
) -> None:
    artifact = export(Q4_K_M, max_cells=4096)
    with pytest.raises(InvalidInputError, match=message):
        load(artifact, backend="cuda", device="cpu", threads=1, **limits)


def test_what_just_fits(export: Any) -> None:
    limits = {"max_decode_sequences": 2, "max_context": 256, "max_cells": 513}
    artifact = export(Q4_K_M, max_cells=4096)
    with load(artifact, backend="cuda", device="cpu", threads=1, **limits) as engine:
        assert engine.get_stats()["cells_total"] == 512
        assert engine.generate([1, 2, 3], max_tokens=2, ignore_eos=True).usage.prompt_tokens == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(export: Any) -> None:
    refusal = r"device is cuda, but .* --device cpu runs without"
    with pytest.raises(BackendUnavailableError, match=refusal):
        load(export(Q4_K_M), backend="cuda", device="cuda")
    with pytest.raises(BackendUnavailableError, match="device is cuda, but"):
        get_backend("cuda").build(lambda what, done: None)


def test_the_default_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    monkeypatch.setattr("backends.registry._NVIDIA_DRIVER", driver)
    assert default_backend() != "cuda"
    driver.touch()
    for has_cuda, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("backends.registry._torch_has_cuda", lambda has=has_cuda: has)
        monkeypatch.setattr("sys.platform", "linux")
        assert default_backend() == expected
