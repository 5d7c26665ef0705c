"""Penalties, bias and log probabilities against their plain formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling import SamplingPipeline, token_logprob
from astrai_cli.errors import InvalidInputError

SIZE = 12
Logits = NDArray[np.float32]
# Quarters, so that ties are common and sums are exact.
LOGITS = arrays(np.float32, SIZE, elements=st.integers(-40, 40).map(lambda n: n / 4))
IDS = st.integers(0, SIZE - 1)
PENALTIES = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.25, 0.0, 2.0]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100.0, 1.0, 100.0]), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
)


def changed(
    logits: Logits, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> list[float]:
    """Every logit by the formulas of the documentation, one after the other."""
    bias = dict(params.logit_bias)
    result = []
    for token_id, logit in enumerate(logits.tolist()):
        factor = params.repetition_penalty if token_id in {*prompt, *answer} else 1.0
        penalised = logit / factor if logit > 0 else logit * factor
        count = answer.count(token_id)
        penalised -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        result.append(penalised + bias.get(token_id, 0.0))
    return result


@given(st.lists(LOGITS, min_size=1, max_size=6), PENALTIES, st.lists(IDS, max_size=5))
def test_greedy_answers_follow_the_formulas(
    rows: list[Logits], params: SamplingParams, prompt: list[int]
) -> None:
    pipeline = SamplingPipeline.from_params(params, 0, prompt)
    answer: list[int] = []
    for index, logits in enumerate(rows):
        before = logits.copy()
        expected = changed(logits, params, prompt, answer)
        answer.append(pipeline.sample(logits, index))
        assert answer[-1] == expected.index(max(expected))
        np.testing.assert_array_equal(logits, before)


@given(st.lists(LOGITS, min_size=1, max_size=4), PENALTIES, st.lists(IDS, max_size=5), IDS)
def test_a_draw_is_one_from_the_changed_logits(
    rows: list[Logits], params: SamplingParams, prompt: list[int], seed: int
) -> None:
    drawn = replace(params, temperature=1.0, top_k=5, top_p=0.9)
    pipeline = SamplingPipeline.from_params(drawn, seed, prompt)
    plain = SamplingPipeline.from_params(SamplingParams(temperature=1.0, top_k=5, top_p=0.9), seed)
    answer: list[int] = []
    for index, logits in enumerate(rows):
        expected = np.array(changed(logits, params, prompt, answer), np.float32)
        answer.append(pipeline.sample(logits, index))
        assert answer[-1] == plain.sample(expected, index)


@given(LOGITS, IDS, st.integers(0, SIZE + 2))
def test_log_probabilities_are_the_log_softmax(logits: Logits, token_id: int, n_top: int) -> None:
    exact = logits.astype(np.float64)
    expected = exact - np.log(np.exp(exact).sum())
    told = token_logprob(logits, token_id, n_top)
    assert told.token_id == token_id
    assert told.logprob == pytest.approx(expected[token_id], abs=1e-6)
    likeliest = sorted(range(SIZE), key=lambda each: (-logits[each], each))[:n_top]
    assert [each for each, _ in told.top] == likeliest
    assert [value for _, value in told.top] == pytest.approx(expected[likeliest], abs=1e-6)


def test_a_masked_token_has_a_log_probability_that_json_can_hold() -> None:
    told = token_logprob(np.array([0, -np.inf], np.float32), 1, 2)
    assert told.logprob == -9999.0
    assert told.top == ((0, 0.0), (1, -9999.0))


@pytest.mark.parametrize(
    ("bias", "names"),
    [
        ([(1, 101.0)], "logit_bias of token id 1 is 101.0; it must be -100 to 100"),
        ([(1, float("nan"))], "is nan"),
        ([(1, 0.0), (1, 1.0)], "twice"),
        ([(n, 0.0) for n in range(1025)], "1025 entries; at most 1024"),
    ],
)
def test_biases_out_of_bounds_are_named(bias: Any, names: str) -> None:
    with pytest.raises(InvalidInputError, match=names) as caught:
        SamplingPipeline.from_params(SamplingParams(logit_bias=tuple(bias)), 0)
    assert caught.value.param == "logit_bias"
