"""Rotations: orthogonal, and without a trace in what a model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_decoder import ReferenceDecoder, relative_error
from tiny_models import VOCABULARY, tiny_gguf
from torch import Tensor
from whole_sequences import Blocks

from backends.cpu.rotation import (
    BlockHadamard,
    HadamardInput,
    ResidualRotation,
    fold_norm,
    hadamard,
    largest_power_of_two,
    rotate_block,
    turn_block,
)

WIDTHS = [576, 96, 64, 40, 7, 1]


def sylvester(size: int) -> Tensor:
    """The orthonormal matrix, by its recursive definition."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


@given(st.integers(1, 10**6))
def test_the_largest_power_of_two(n: int) -> None:
    power = largest_power_of_two(n)
    assert n % power == 0
    assert n // power % 2 == 1
    assert power & (power - 1) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8), st.integers(1, 5), st.lists(st.integers(1, 4), max_size=2))
def test_hadamard_is_sylvesters_matrix(exponent: int, runs: int, leading: list[int]) -> None:
    block = 2**exponent
    x = torch.randn(*leading, runs * block, dtype=torch.float64)
    turned = hadamard(x, block)
    assert turned.shape == x.shape
    expected = (x.reshape(-1, block) @ sylvester(block)).reshape(x.shape)
    torch.testing.assert_close(turned, expected)
    torch.testing.assert_close(hadamard(turned, block), x)
    torch.testing.assert_close(turned.norm(), x.norm())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_residual_rotation_is_orthogonal(width: int) -> None:
    matrix = ResidualRotation(width).of_rows(torch.eye(width))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(width), atol=1e-5, rtol=0)
    x = torch.randn(3, width)
    torch.testing.assert_close(ResidualRotation(width).of_rows(x), x @ matrix, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [576, 96, 64])
def test_one_large_channel_is_spread_out(width: int) -> None:
    assert ResidualRotation(width).of_rows(torch.eye(width)).abs().max() < 0.3


def test_another_seed_is_another_rotation() -> None:
    x = torch.randn(1, 96)
    first, second = (ResidualRotation(96, seed).of_rows(x) for seed in (0, 1))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(ResidualRotation(96).of_rows(x), first)


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-windows": {"sliding_window": 9, "sliding_window_pattern": (True, False)},
    "qwen2": {"architecture": "qwen2", "tied": False, "n_heads": 6},
    "qwen3": {"architecture": "qwen3", "n_kv_heads": 1, "head_width": 32},
    # No power of two anywhere: heads of 3 * 4, residual of 3 * 4, feed-forward of 3 * 8 and 3 * 16.
    "odd": {"architecture": "qwen2", "width": 12, "head_width": 12, "ffn_width": 24},
    "odd-turned": {"width": 28, "head_width": 20, "ffn_width": 48},
}


@pytest.mark.parametrize("name", MODELS)
def test_rotated_blocks_compute_the_same(tmp_path: Path, name: str) -> None:
    path = tiny_gguf(tmp_path, name=name, **MODELS[name])
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 50)
    model = Blocks.load(path)
    residual = ResidualRotation(model.spec.width)
    model.embedding = residual.of_rows(model.embedding)
    for block in model.blocks:
        rotate_block(block, residual)
    fold_norm(model.norm, model.head)
    model.head.weight.data = residual.of_rows(model.head.weight)

    logits = model.logits(torch.from_numpy(tokens))

    assert relative_error(logits, ReferenceDecoder(path).logits(tokens.tolist())) < 1e-4
    assert (model.norm.weight == 1).all()


@pytest.mark.parametrize("width", [64, 28])
def test_turned_blocks_compute_the_same(tmp_path: Path, width: int) -> None:
    """Blocks with norms behind their sub-layers, whose stream stays in its own basis."""
    numbers = {"sliding_window": 9, "logit_scale": 1.0, "logit_cap": 20.0}
    path = tiny_gguf(tmp_path, "muse-glimmer", n_layers=5, width=width, tied=False, **numbers)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 50)
    model = Blocks.load(path)
    for block in model.blocks:
        turn_block(block)

    logits = model.logits(torch.from_numpy(tokens))

    assert relative_error(logits, ReferenceDecoder(path).logits(tokens.tolist())) < 1e-4
    turned = [type(module) for module in model.blocks[0].modules()].count(BlockHadamard)
    assert turned == (4 if width == 64 else 2)


@pytest.mark.parametrize(("ffn_width", "turned_in"), [(128, 64), (96, 32), (48, 16), (40, None)])
def test_the_inner_vector_is_turned_in_blocks(
    tmp_path: Path, ffn_width: int, turned_in: int | None
) -> None:
    model = Blocks.load(tiny_gguf(tmp_path, ffn_width=ffn_width))
    rotate_block(model.blocks[0], ResidualRotation(model.spec.width))
    down = model.blocks[0].ffn_down
    assert (down.block if isinstance(down, HadamardInput) else None) == turned_in
