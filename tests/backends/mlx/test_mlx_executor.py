"""What is the mlx executor's own, beside the conformance suites."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from image_conformance import CELLS, encode, random_image, run
from mlx_lm.models import exaone4, mamba, olmo3
from mlx_lm.models.cache import make_prompt_cache
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import BackendUnavailableError, ExecutionError, InvalidInputError
from backends.base import Executor, SequenceStep, Step
from backends.mlx.cells import CellPool, group_sequences
from backends.mlx.packed import PackedModel, PackedRows
from backends.registry import get_backend


@pytest.fixture
def executor(export: Any) -> Iterator[Executor]:
    with closing(open_mlx(export(Q4_K_M, MMPROJ))) as executor:
        yield executor


def open_mlx(artifact: Path, **limits: Any) -> Executor:
    executor = get_backend("mlx").open(artifact, LimitsConfig(**limits))
    executor.allocate(CELLS)
    return executor


def test_the_reference_s_numbers(executor: Executor) -> None:
    """Those of the file's own weights, of which Q6_K loses some here."""
    logits = run(executor, reference("input_ids"), 48)
    assert distance(logits, reference("q4_k_m_logits")) < 0.02
    assert distance(encode(executor, IMAGE.read_bytes()), reference("image_embeds")) < 1e-4


@pytest.mark.parametrize(
    ("dtype", "text", "tower"), [("float32", 1e-4, 1e-4), ("bfloat16", 0.15, 0.02)]
)
def test_the_reference_s_numbers_before_quantization(
    export: Any, dtype: str, text: float, tower: float
) -> None:
    artifact = export(optional_model("tiny-muse/tiny-muse-bf16.gguf"), MMPROJ, dtype)
    with closing(open_mlx(artifact)) as executor:
        for chunk in (48, 7):
            logits = run(executor, reference("input_ids"), chunk)
            assert distance(logits, reference("bf16_logits")) < text
        image = encode(executor, IMAGE.read_bytes())
        assert distance(image, reference("image_embeds")) < tower
        logits = run(executor, reference("mm_input_ids"), 48, image)
        assert distance(logits, reference("bf16_mm_logits")) < text


def test_what_it_tells(executor: Executor) -> None:
    info = executor.info
    assert info.details["kv_dtype"] == "float32"
    assert info.bytes_per_cell == 4 * info.spec.kv_values_per_token
    assert (info.max_step_tokens, info.max_vision_patches) == (512, 4096)


def test_any_thread_may_run_steps(executor: Executor) -> None:
    """One at a time, as the engine's does on an executor that another one opened."""
    tokens = reference("input_ids")
    found: list[NDArray[np.float32]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(run(executor, tokens, 7)))
        thread.start()
        thread.join()
    found.append(run(executor, tokens, 7))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_step_that_fails_in_the_middle(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = reference("input_ids").astype(np.int32)
    whole = run(executor, tokens, 48)
    pages = np.array([1], dtype=np.int32)
    executor.step(Step([SequenceStep(tokens[:20], 0, pages)], 512))
    rest = Step([SequenceStep(tokens[20:], 20, pages, 28)], 512)
    calls = iter(range(4))
    attention = mx.fast.scaled_dot_product_attention

    def third_fails(*args: Any, **options: Any) -> mx.array:
        if next(calls) == 3:
            raise RuntimeError("not enough memory")
        return attention(*args, **options)

    with monkeypatch.context() as patch:
        # By then the device has begun with the first layers.
        patch.setattr("backends.mlx.packed.LAYERS_AT_ONCE", 1)
        patch.setattr(mx.fast, "scaled_dot_product_attention", third_fails)
        with pytest.raises(ExecutionError, match="not enough memory"):
            executor.step(rest)
    assert distance(executor.step(rest).logits, whole[20:]) < 1e-5


def test_cells_that_are_lost_close_the_executor(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step([SequenceStep(np.zeros(3, np.int32), 0, np.zeros(1, np.int32))], 512)
    with monkeypatch.context() as patch:

        def fail(*arrays: object) -> None:
            raise RuntimeError("the device is gone")

        patch.setattr(mx, "eval", fail)
        with pytest.raises(ExecutionError, match="the device is gone"):
            executor.step(step)
    with pytest.raises(ExecutionError, match="closed"):
        executor.step(step)


def test_more_cells_than_memory(executor: Executor) -> None:
    with pytest.raises(InvalidInputError, match=f"{2**50} cells"):
        executor.allocate(2**50)


def test_a_closed_executor_runs_nothing(executor: Executor) -> None:
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        executor.encode_image(random_image(1, 1))
    with pytest.raises(ExecutionError, match="closed"):
        executor.allocate(5)


def test_a_failing_tower(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(mx.fast, "layer_norm", fail)
    with pytest.raises(ExecutionError, match="not enough memory"):
        executor.encode_image(random_image(1, 1))


def test_a_tower_that_was_not_exported(export: Any) -> None:
    with pytest.raises(InvalidInputError, match="export the model with --mmproj"):
        open_mlx(export(Q4_K_M), mmproj=MMPROJ)


@pytest.mark.parametrize("package", ["mlx", "mlx_lm"])
def test_without_the_packages(export: Any, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    artifact = export(Q4_K_M)
    for name in [*sys.modules]:
        if name.startswith(("backends.mlx.", "mlx_lm")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailableError, match=r"pip install '\.\[mlx\]'"):
        get_backend("mlx").open(artifact, LimitsConfig())


SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "sliding_window": 9,
}


def packed_logits(model: PackedModel, some: list[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
    """Logits of each text's last token; all texts in two steps, of cells in no order."""
    pages = np.random.default_rng(0).permutation(64).astype(np.int32).reshape(len(some), -1)
    logits = np.empty(0)
    for begin, end in ((0, -1), (-1, None)):
        sequences = [
            SequenceStep(text[begin:end], begin % len(text), own)
            for text, own in zip(some, pages, strict=True)
        ]
        step = Step(sequences, 4)
        groups, order = group_sequences(step)
        tokens = np.concatenate([each.tokens for each in sequences])
        positions = np.concatenate(
            [np.arange(each.start, each.start + len(each.tokens)) for each in sequences]
        )
        cells = np.concatenate(
            [
                each.pages[at // 4] * 4 + at % 4
                for each in sequences
                for at in [np.arange(each.start, each.start + len(each.tokens))]
            ]
        )
        last = np.cumsum([len(each.tokens) for each in sequences]) - 1
        rows = model(
            PackedRows(
                groups,
                *(mx.array(each[order].astype(np.int32)) for each in (tokens, positions, cells)),
                mx.array(np.argsort(order)[last].astype(np.int32)),
                mx.array(np.zeros(0, np.int32)),
                mx.zeros((0, 64)),
            )
        )
        logits = np.array(rows)
    return list(logits)


@pytest.mark.parametrize("module", [olmo3, exaone4], ids=lambda module: module.__name__)
def test_other_architectures_of_mlx_lm(module: Any) -> None:
    """Plain and sliding caches, and attention of their own making."""
    mx.random.seed(0)
    kinds = ["sliding_attention", "full_attention"] * 2
    fields = {
        "layer_types": kinds,
        "sliding_window_pattern": "LG",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_scaling": None,
    }
    theirs = module.Model(module.ModelArgs.from_dict({"model_type": "x", **SHAPE, **fields}))
    some = [np.random.default_rng(n).integers(0, 100, n, dtype=np.int32) for n in (30, 12, 31, 5)]
    expected = []
    for text in some:
        rows = theirs(mx.array(text[None]), cache=make_prompt_cache(theirs))
        expected.append(np.array(rows[0, -1]))
    model = PackedModel(theirs)
    model.pool = CellPool(model.n_layers, 256, 2, 16, mx.float32)
    for ours, own in zip(packed_logits(model, some), expected, strict=True):
        assert distance(ours, own) < 1e-4


def test_states_that_are_no_cells() -> None:
    args = mamba.ModelArgs.from_dict(
        {"model_type": "mamba", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 16}
        | {"state_size": 4, "num_hidden_layers": 1, "conv_kernel": 4, "use_bias": False}
        | {"use_conv_bias": True, "time_step_rank": 2}
    )
    with pytest.raises(InvalidInputError, match="plain and for sliding attention"):
        PackedModel(mamba.Model(args))


_ONE_STEP = """
import sys, threading
from pathlib import Path
import numpy as np
from astrai_cli.config import LimitsConfig
from backends.base import SequenceStep, Step
from backends.registry import get_backend

executor = get_backend("mlx").open(Path(sys.argv[1]), LimitsConfig())
executor.allocate(16)
step = Step([SequenceStep(np.zeros(3, np.int32), 0, np.zeros(1, np.int32))], 16)
thread = threading.Thread(target=executor.step, args=(step,))
thread.start()
thread.join()
executor.close()
"""


def test_the_process_ends_well(export: Any) -> None:
    """MLX frees what a thread compiled when that thread ends, which must not be now."""
    command = [sys.executable, "-c", _ONE_STEP, str(export(Q4_K_M))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
