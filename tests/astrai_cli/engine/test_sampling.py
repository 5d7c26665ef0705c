from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling import (
    BaseSamplingStrategy,
    Candidates,
    MinPStrategy,
    SamplingPipeline,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
    choice_seed,
    sample,
    uniform,
)
from astrai_cli.errors import ExecutionError, InvalidInputError

Logits = NDArray[np.float32]

# Few distinct values, so that ties are common.
LOGITS = arrays(np.float32, st.integers(1, 600), elements=st.integers(-12, 12).map(float))
EVERYTHING = SamplingParams(top_k=0)


def candidates(logits: Logits) -> Candidates:
    return Candidates(np.arange(len(logits)), logits - logits.max())


def kept(strategy: BaseSamplingStrategy, logits: Logits) -> list[int]:
    return strategy.apply(candidates(logits)).ids.tolist()


def likeliest_first(logits: Logits) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def probabilities(logits: Logits) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


@given(LOGITS, st.integers(1, 700))
def test_top_k_keeps_the_likeliest_and_lower_ids_of_equals(logits: Logits, k: int) -> None:
    assert kept(TopKStrategy(k), logits) == sorted(likeliest_first(logits)[:k])


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_nucleus(logits: Logits, p: float) -> None:
    order = likeliest_first(logits)
    ids = kept(TopPStrategy(p), logits)
    assert ids == sorted(order[: len(ids)])
    share = probabilities(logits)[order]
    assert share[: len(ids)].sum() >= p - 1e-6
    assert share[: len(ids) - 1].sum() < p + 1e-6


@given(LOGITS, st.floats(0.01, 1))
def test_min_p_keeps_what_has_the_share_of_the_likeliest(logits: Logits, min_p: float) -> None:
    ids = kept(MinPStrategy(min_p), logits)
    share = probabilities(logits) / probabilities(logits).max()
    assert set(np.flatnonzero(share >= min_p * (1 + 1e-5))) <= set(ids)
    assert set(ids) <= set(np.flatnonzero(share >= min_p * (1 - 1e-5)))


@given(LOGITS, st.floats(0.01, 10))
def test_temperature_scales_differences(logits: Logits, temperature: float) -> None:
    scaled = TemperatureStrategy(temperature).apply(candidates(logits))
    expected = (logits - logits.max()) / temperature
    np.testing.assert_allclose(scaled.logits, expected, rtol=1e-5)


@given(LOGITS, st.sampled_from([0.0, 1e-300, 1e-40]))
def test_temperature_zero_and_next_to_it_is_the_first_maximum(
    logits: Logits, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5)
    assert sample(logits, params) == int(logits.argmax())


@pytest.mark.filterwarnings("error")
def test_the_smallest_temperature_that_is_not_greedy_divides_without_overflow() -> None:
    logits = np.array([-1e6, 5, 5 + 1e-6, 1e6], np.float32)
    assert sample(logits, SamplingParams(temperature=1e-30)) == 3


@given(LOGITS, st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_a_draw_inverts_the_cumulative_distribution(logits: Logits, seed: int, index: int) -> None:
    token_id = sample(logits, EVERYTHING, seed, index)
    cumulative = probabilities(logits).cumsum()
    u = uniform(seed, index)
    assert cumulative[token_id] >= u - 1e-6
    assert token_id == 0 or cumulative[token_id - 1] <= u + 1e-6


@given(LOGITS, st.integers(0, 2**63 - 1))
def test_what_a_filter_drops_is_never_drawn(logits: Logits, seed: int) -> None:
    params = SamplingParams(temperature=1.5, top_k=5, top_p=0.8, min_p=0.1)
    token_id = sample(logits, params, seed)
    assert token_id in likeliest_first(logits)[:5]
    assert np.exp((logits[token_id] - logits.max()) / 1.5) >= 0.1 * (1 - 1e-5)


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 700]] = 0.0
    drawn = {sample(logits, EVERYTHING, 1, index) for index in range(100)}
    assert drawn == {3, 700}


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    pipeline = SamplingPipeline.from_params(EVERYTHING, seed=7)
    counts = np.bincount([pipeline.sample(logits, index) for index in range(8000)], minlength=4)
    expected = 8000 * probabilities(logits)
    # The 99.99th percentile of chi-square with 3 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


def test_uniform_is_the_documented_function() -> None:
    golden = 0x9E3779B97F4A7C15
    # SplitMix64's published first outputs for state 0 are mix(1 * golden), mix(2 * golden), ...
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [uniform(0, index) for index in range(3)] == [z // 2**11 / 2**53 for z in outputs]
    assert uniform(1, 0) != uniform(0, 1)
    assert uniform(golden, 0) != uniform(0, 1)


def test_choices_have_seeds_of_their_own_the_first_one_the_requests() -> None:
    assert choice_seed(5, 0) == 5
    # SplitMix64's second output for state 0 is mix(2 * golden); see above.
    assert choice_seed(0, 2) == 0x6E789E6AA1B965F4 >> 1
    seeds = {choice_seed(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(100)}
    assert len(seeds) == 300
    assert max(seeds) < 2**63


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_unusable_logits_are_an_execution_error(bad: float, temperature: float) -> None:
    logits = np.array([0, bad, 1], np.float32)
    with pytest.raises(ExecutionError, match=str(bad)):
        sample(logits, SamplingParams(temperature=temperature))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 10.5),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 101.0),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", float("nan")),
    ],
)
def test_parameters_out_of_bounds_are_named(name: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=rf"{name} is {value}; it must be") as caught:
        sample(np.zeros(4, np.float32), replace(SamplingParams(), **{name: value}))
    assert caught.value.param == name
