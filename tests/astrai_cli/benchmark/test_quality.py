"""Perplexity, divergence and agreement against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.benchmark.quality import QualityTally


def logits(*rows: list[float]) -> np.ndarray:
    """Rows of probabilities as logits, each row shifted by its own constant."""
    values = np.log(np.array(rows)) + np.arange(len(rows))[:, None] * 3.0
    return values.astype(np.float32)


def test_two_rows_by_hand() -> None:
    tally = QualityTally()
    reference = logits([0.5, 0.25, 0.25], [0.2, 0.2, 0.6])
    model = logits([0.25, 0.5, 0.25], [0.1, 0.3, 0.6])
    tally.add(np.array([2, 0]), reference, model)
    quality = tally.result()

    # One token is predicted: token 0, after token 2, with 1/2 and 1/4.
    assert quality.reference_perplexity == pytest.approx(2.0, rel=1e-6)
    assert quality.perplexity == pytest.approx(4.0, rel=1e-6)
    first = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    second = 0.2 * math.log(2) + 0.2 * math.log(2 / 3)
    assert quality.kl == pytest.approx((first + second) / 2, rel=1e-5)
    assert quality.top1_agreement == 0.5
    assert quality.tokens == 2


def test_a_model_is_at_no_distance_from_itself() -> None:
    random = np.random.default_rng(0)
    tally = QualityTally()
    for length in (2, 33, 70):
        rows = random.standard_normal((length, 11), dtype=np.float32)
        tally.add(random.integers(0, 11, length), rows, rows)
    quality = tally.result()
    assert quality.kl == 0.0
    assert quality.top1_agreement == 1.0
    assert quality.perplexity == quality.reference_perplexity
    assert quality.tokens == 105


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(2, 68))
def test_windows_add_up(seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 5, 70)
    reference, model = random.standard_normal((2, 70, 5)).astype(np.float32) * 4
    whole, parts = QualityTally(), QualityTally()
    whole.add(tokens, reference, model)
    for part in (slice(0, cut), slice(cut, 70)):
        parts.add(tokens[part], reference[part], model[part])
    assert parts.result().kl == pytest.approx(whole.result().kl, rel=1e-9)
    assert parts.result().kl >= 0.0
    assert parts.result().top1_agreement == whole.result().top1_agreement
