"""What is the eager executor's own, beside the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from step_texts import run, texts
from tiny_models import tiny_gguf

from astrai_cli.config import ExportConfig, LimitsConfig
from astrai_cli.errors import ExecutionError, InvalidInputError, ModelFileError
from backends.base import context_limit
from backends.eager.executor import EagerExecutor
from backends.registry import get_backend


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[EagerExecutor]:
    executor = EagerExecutor(tiny_gguf(tmp_path), LimitsConfig())
    executor.allocate(1024)
    yield executor
    executor.close()


def test_the_context_is_the_smallest_bound(tmp_path: Path) -> None:
    executor = EagerExecutor(tiny_gguf(tmp_path, context_length=8192), LimitsConfig())
    spec = executor.info.spec
    assert executor.info.max_context == 4096
    assert context_limit(spec, 5000) == 5000
    with pytest.raises(InvalidInputError, match=r"max_context is 9000, .* context is 8192"):
        context_limit(spec, 9000)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a model")
    with pytest.raises(ModelFileError, match=r"notes\.txt"):
        get_backend("eager").open(path, LimitsConfig())


def test_there_is_nothing_to_build_or_export(tmp_path: Path) -> None:
    backend = get_backend("eager")
    assert backend.unavailable() is None
    assert backend.build(lambda what, fraction: None) is None
    source = tiny_gguf(tmp_path)
    with pytest.raises(InvalidInputError, match="nothing to export"):
        backend.export(source, tmp_path, ExportConfig(), lambda what, fraction: None)


def test_more_cells_than_memory(executor: EagerExecutor) -> None:
    with pytest.raises(InvalidInputError, match=f"{2**40} cells"):
        executor.allocate(2**40)


def test_a_step_that_fails_in_the_middle(
    executor: EagerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = texts([20], 16, shuffled=True)
    run(executor, 16, text.take(12))

    def out_of_memory(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", out_of_memory)
        with pytest.raises(ExecutionError, match="not enough memory"):
            run(executor, 16, text.take(8))
    text.done = 12
    after = run(executor, 16, text.take(8))[0]
    text.done = 0
    np.testing.assert_allclose(
        after, run(executor, 16, text.take(20))[0][12:], rtol=1e-4, atol=1e-5
    )


def test_a_closed_executor_runs_nothing(executor: EagerExecutor) -> None:
    [text] = texts([3], 16, shuffled=False)
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        run(executor, 16, text.take(3))


def test_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        executor = EagerExecutor(tiny_gguf(tmp_path), LimitsConfig(threads=1))
        assert executor.info.details["threads"] == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
