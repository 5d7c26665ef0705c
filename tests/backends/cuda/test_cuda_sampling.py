"""Tokens drawn on the device are those that the host draws."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from muse_fixtures import Q4_K_M
from numpy.typing import NDArray

from astrai_cli import load
from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling import SamplingPipeline
from backends.base import ALL_TOKENS, Draw
from backends.cuda.sampling import UNUSABLE, draw_tokens

VOCABULARY = 3000
INFO: Any = SimpleNamespace(max_top_k=ALL_TOKENS, changes_logits=True)
Floats = NDArray[np.float32]

PARAMETERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 2, 50, 333, 1500, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.1, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    logit_bias=st.sampled_from([(), (), ((5, 9.0), (2999, -3.5)), ((0, 2.0),)]),
)


def random_logits(rows: int, seed: int, *, ties: bool) -> Floats:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, VOCABULARY)).astype(np.float32)
    return np.round(logits * 4) / 4 if ties else logits


def device_draws(logits: Floats, draws: list[Draw]) -> list[int]:
    tokens: list[int] = draw_tokens(torch.from_numpy(logits), draws).tolist()
    return tokens


def answers(params: list[SamplingParams], seed: int, *, ties: bool) -> tuple[Any, Any]:
    """Five tokens of an answer each, by the host and by the device, all rows at once."""
    prompt = list(range(0, VOCABULARY, 7))
    hosts, devices = (
        [SamplingPipeline.from_params(each, n, prompt) for n, each in enumerate(params)]
        for _ in range(2)
    )
    by_host, by_device = [], []
    for index in range(5):
        logits = random_logits(len(params), seed + index % 2, ties=ties)
        by_host.append([host.sample(row, index) for host, row in zip(hosts, logits, strict=True)])
        draws = [pipeline.draws(index, (), INFO)[0] for pipeline in devices]
        by_device.append(device_draws(logits, draws))
        for pipeline, token in zip(devices, by_device[-1], strict=True):
            pipeline.observe(token)
    return by_host, by_device


@settings(max_examples=40, deadline=None)
@given(st.lists(PARAMETERS, min_size=1, max_size=8), st.integers(0, 2**31), st.booleans())
def test_any_parameters(params: list[SamplingParams], seed: int, ties: bool) -> None:
    """Rows of one call have parameters of their own; rounded logits are often equal."""
    by_host, by_device = answers(params, seed, ties=ties)
    assert by_device == by_host


@settings(max_examples=30, deadline=None)
@given(
    PARAMETERS,
    st.integers(0, 2**31),
    st.lists(st.integers(0, VOCABULARY - 1) | st.just(7), max_size=6),
)
def test_behind_guesses(params: SamplingParams, seed: int, guesses: list[int]) -> None:
    """What is drawn behind a guess is what is drawn once the guess is known."""
    logits = random_logits(1 + len(guesses), seed, ties=False)
    pipeline = SamplingPipeline.from_params(params, 3, [1, 7, 8])
    by_device = device_draws(logits, list(pipeline.draws(2, guesses, INFO)))
    for row in range(1 + len(guesses)):
        host = SamplingPipeline.from_params(params, 3, [1, 7, 8])
        for guess in guesses[:row]:
            host.observe(guess)
        assert by_device[row] == host.sample(logits[row], 2 + row)


def test_many_tokens() -> None:
    params = [SamplingParams(temperature=1.3, top_k=k, top_p=p) for k in (0, 50) for p in (0.9, 1)]
    for seed in range(20):
        by_host, by_device = answers(params, seed, ties=False)
        assert by_device == by_host


def test_the_logits_stay_as_they_are() -> None:
    logits = random_logits(1, 3, ties=False)
    before = logits.copy()
    pipeline = SamplingPipeline.from_params(SamplingParams(repetition_penalty=2.0), 1, [1, 2])
    [draw] = pipeline.draws(0, (), INFO)
    device_draws(logits, [draw])
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range(uniform: float) -> None:
    logits = random_logits(1, 4, ties=True)
    kept = np.flatnonzero(logits[0] >= np.sort(logits[0])[-9])
    [token] = device_draws(logits, [Draw(1.0, 5, 1.0, 0.0, uniform)])
    assert token in kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers(bad: float, temperature: float) -> None:
    logits = random_logits(3, 5, ties=False)
    logits[0, 7] = bad
    logits[1] = bad
    tokens = device_draws(logits, [Draw(temperature, 3, uniform=0.5)] * 3)
    assert (tokens[0] == UNUSABLE) == (bad != -np.inf)
    assert tokens[1] == UNUSABLE
    assert tokens[2] != UNUSABLE


def test_the_engine_s_answers_do_not_depend_on_who_draws(export: Any) -> None:
    prompts = [list(range(1, n)) for n in (4, 9, 14)]
    options: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "seed": 5}

    def generate(artifact: Path) -> list[Any]:
        with load(artifact, backend="cuda", device="cpu", threads=1, max_context=64) as engine:
            return [
                *engine.generate(prompts, temperature=1.2, **options),
                *engine.generate(prompts, temperature=0, presence_penalty=1.5, **options),
                engine.generate(prompts[0], top_k=0, repetition_penalty=1.4, **options),
                engine.generate(prompts[1], logprobs=2, **options),
                engine.generate(prompts[1], **options),
            ]

    on_device, on_host = generate(export(Q4_K_M)), generate(export(Q4_K_M, logits=True))
    assert on_device == on_host
    assert on_device[-1].token_ids == on_device[-2].token_ids
