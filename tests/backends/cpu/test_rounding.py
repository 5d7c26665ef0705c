"""Rounding weights to int8: the error that counts, ranges, and inputs that say nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_decoder import relative_error
from torch import Tensor

from backends.cpu.quantized import EMBEDDING_GROUP, PRECISE_LEVELS, round_embedding
from backends.cpu.rounding import INT8_MAX, InputStatistics, Int8Matrix, round_to_int8


def correlated(rows: int, width: int, seed: int = 0) -> Tensor:
    """Inputs that lie near a subspace of a quarter of their width."""
    random = torch.Generator().manual_seed(seed)
    basis = torch.randn(max(1, width // 4), width, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(rows, width, generator=random)
    return torch.randn(rows, len(basis), generator=random) @ basis + 0.1 * noise


def moments_of(x: Tensor) -> Tensor:
    statistics = InputStatistics()
    statistics.add(x)
    assert statistics.moments is not None
    return statistics.moments


def dense(matrix: Int8Matrix) -> Tensor:
    return matrix.values * matrix.scales[:, None]


def output_error(x: Tensor, weight: Tensor, matrix: Int8Matrix) -> float:
    return float((x @ (dense(matrix) - weight).T).norm())


def same(one: Int8Matrix, other: Int8Matrix) -> bool:
    return torch.equal(one.values, other.values) and torch.equal(one.scales, other.scales)


@pytest.mark.parametrize("width", [4, 40, 64, 65, 200])
def test_outputs_are_nearer_than_with_nearest_rounding(width: int) -> None:
    weight = torch.randn(96, width, generator=torch.Generator().manual_seed(1))
    x = correlated(512, width)
    minded = round_to_int8(weight, moments_of(x))
    nearest = round_to_int8(weight, None)
    unseen = correlated(512, width, seed=1)
    for inputs in (x, unseen):
        assert output_error(inputs, weight, minded) < 0.8 * output_error(inputs, weight, nearest)


def test_inputs_without_correlations_leave_nothing_to_mind() -> None:
    weight = torch.randn(8, 100)
    moments = torch.rand(100, dtype=torch.float64).diag()
    assert same(round_to_int8(weight, moments), round_to_int8(weight, None))


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 130), st.integers(1, 40)),
    st.floats(-35, 35),
    st.floats(0, 4),
    st.integers(0, 2**32),
)
def test_any_weights_and_inputs(
    sizes: tuple[int, int, int], magnitude: float, spread: float, seed: int
) -> None:
    """Few rows, dead inputs, channels and weights of very different sizes."""
    out, width, rows = sizes
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=random) * 10.0**magnitude
    x = torch.randn(rows, width, generator=random)
    x *= 10 ** (spread * torch.randn(width, generator=random))
    x[:, torch.rand(width, generator=random) < 0.2] = 0
    minded, nearest = round_to_int8(weight, moments_of(x)), round_to_int8(weight, None)
    for matrix in (minded, nearest):
        assert matrix.values.dtype == torch.int8
        assert matrix.values.shape == weight.shape
        assert matrix.values.to(torch.int16).abs().max() <= INT8_MAX
        assert matrix.scales.shape == (out,)
        assert matrix.scales.isfinite().all()
        assert (matrix.scales > 0).all()
    assert ((dense(nearest) - weight).abs() <= 0.5001 * nearest.scales[:, None]).all()


def test_rows_of_zeros() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 30)
    weight[1] = 0
    for moments in (None, moments_of(correlated(50, 30))):
        matrix = round_to_int8(weight, moments)
        assert not matrix.values[1].any()
        assert (matrix.scales > 0).all()
        largest = matrix.values[[0, 2, 3]].abs().amax(dim=1)
        if moments is None:
            assert largest.tolist() == [INT8_MAX] * 3
        # What other columns lost may take the largest weight a step off its end.
        assert (largest >= INT8_MAX - 2).all()


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_moments_that_say_nothing(value: float) -> None:
    weight = torch.randn(5, 20)
    moments = torch.zeros(20, 20, dtype=torch.float64)
    moments[3, 4] = value
    assert same(round_to_int8(weight, moments), round_to_int8(weight, None))


def test_statistics_add_up() -> None:
    parts = [torch.randn(rows, 7) for rows in (1, 20, 300)]
    statistics = InputStatistics()
    assert statistics.moments is None
    for part in parts:
        statistics.add(part)
    x = torch.cat(parts).to(torch.float64)
    torch.testing.assert_close(statistics.moments, x.T @ x, rtol=1e-5, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([1, 7, 32, 40, 96]), st.floats(-4, 4), st.integers(0, 2**32)
)
def test_embeddings(rows: int, width: int, magnitude: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, width, generator=random) * 10.0**magnitude
    table[0] = 0
    values, scales = round_embedding(table)
    assert values.dtype == torch.int8
    assert scales.dtype == torch.float16
    groups = width // EMBEDDING_GROUP if width % EMBEDDING_GROUP == 0 else 1
    assert scales.shape == (rows, groups)
    rounded = values * scales.to(torch.float32).repeat_interleave(width // groups, dim=1)
    error, largest = (x.view(rows, groups, -1).abs().amax(dim=2) for x in (rounded - table, table))
    # Half a step of 1 / 127, and what float16 cannot tell of the scales below 2^-14.
    assert (error <= 0.0045 * largest + INT8_MAX * 2**-25).all()


def test_embeddings_in_more_levels() -> None:
    table = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    values, scales = round_embedding(table, PRECISE_LEVELS)
    assert values.dtype == torch.int16
    rounded = values * scales.to(torch.float32).repeat_interleave(EMBEDDING_GROUP, dim=1)
    assert relative_error(rounded.numpy(), table.numpy()) < 0.0005
