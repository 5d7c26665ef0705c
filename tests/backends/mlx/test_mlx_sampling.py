"""Tokens drawn on the device are those that the host draws."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from bad_steps import MAX_CONTEXT
from hypothesis import given, settings
from hypothesis import strategies as st
from muse_fixtures import Q4_K_M
from numpy.typing import NDArray

from astrai_cli import load
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.request import SamplingParams
from astrai_cli.engine.sampling import SamplingPipeline
from astrai_cli.errors import InvalidInputError
from backends.base import Draw, SequenceStep, Step
from backends.mlx.sampling import MAX_TOP_K, UNUSABLE, draw_tokens
from backends.registry import get_backend

VOCABULARY = 3000
Floats = NDArray[np.float32]
INFO = SimpleNamespace(max_top_k=MAX_TOP_K, changes_logits=False)


def both(logits: Floats, params: list[SamplingParams], index: int) -> tuple[list[int], list[int]]:
    """What the host and the device draw from rows of logits, each under its own parameters."""
    pipelines = [SamplingPipeline.from_params(each, seed) for seed, each in enumerate(params)]
    host = [pipeline.sample(row, index) for pipeline, row in zip(pipelines, logits, strict=True)]
    draws = [pipeline.draws(index, (), INFO)[0] for pipeline in pipelines]
    drawn = draw_tokens(mx.array(logits), [draw for draw in draws if draw is not None])
    return host, np.array(drawn).tolist()


def random_logits(rows: int, seed: int, *, ties: bool) -> Floats:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, VOCABULARY)).astype(np.float32)
    return np.round(logits * 4) / 4 if ties else logits


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.9]),
            top_k=st.sampled_from([1, 2, 50, 333, MAX_TOP_K]),
            top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
            min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_any_parameters(params: list[SamplingParams], seed: int, ties: bool) -> None:
    """Rows of one call have parameters of their own; rounded logits are often equal."""
    host, device = both(random_logits(len(params), seed, ties=ties), params, seed % 1000)
    assert device == host


def test_a_thousand_tokens_of_one_answer() -> None:
    params = [SamplingParams(temperature=1.3, top_k=50, top_p=0.95)] * 8
    for index in range(125):
        host, device = both(random_logits(8, index, ties=False), params, index)
        assert device == host


def test_vocabularies_smaller_than_top_k() -> None:
    logits = random_logits(2, 0, ties=False)[:, :40]
    host, device = both(logits, [SamplingParams(top_k=50), SamplingParams(top_k=40)], 3)
    assert device == host


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range(uniform: float) -> None:
    logits = random_logits(1, 4, ties=True)
    kept = np.flatnonzero(logits[0] >= np.sort(logits[0])[-9])
    [token] = np.array(draw_tokens(mx.array(logits), [Draw(1.0, 5, 1.0, 0.0, uniform)]))
    assert token in kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers(bad: float, temperature: float) -> None:
    logits = random_logits(3, 5, ties=False)
    logits[0, 7] = bad
    logits[1] = bad
    draws = [Draw(temperature, 3, uniform=0.5)] * 3
    tokens = np.array(draw_tokens(mx.array(logits), draws))
    assert (tokens[0] == UNUSABLE) == (bad != -np.inf)
    assert tokens[1] == UNUSABLE
    assert tokens[2] != UNUSABLE


def test_what_only_hosts_can_draw() -> None:
    def draws(**options: Any) -> tuple[Draw, ...]:
        return SamplingPipeline.from_params(SamplingParams(**options), 1).draws(0, (), INFO)

    [greedy] = draws(temperature=0.0)
    assert greedy == Draw(0.0, uniform=greedy.uniform)
    assert draws(top_k=MAX_TOP_K)
    for options in ({"top_k": 0}, {"top_k": MAX_TOP_K + 1}, {"repetition_penalty": 1.1}):
        assert not draws(**options)
    assert not draws(logit_bias=((3, 1.0),), temperature=0.0)


def test_the_engine_s_answers_do_not_depend_on_who_draws(
    export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(1, n)) for n in (4, 9, 14)]
    options: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "seed": 5}
    answers = []
    for most in (MAX_TOP_K, 0):
        monkeypatch.setattr("backends.mlx.executor.MAX_TOP_K", most)
        with load(export(Q4_K_M), backend="mlx", max_context=64) as engine:
            answers.append(
                [
                    *engine.generate(prompts, temperature=1.2, **options),
                    *engine.generate(prompts, temperature=0, **options),
                    engine.generate(prompts[0], top_k=0, **options),
                ]
            )
    assert answers[0] == answers[1]


def test_draws_beside_rows_of_logits(export: Any) -> None:
    tokens, pages = np.arange(6, dtype=np.int32), np.arange(4, dtype=np.int32)
    limits = LimitsConfig(max_context=MAX_CONTEXT)
    with closing(get_backend("mlx").open(export(Q4_K_M), limits)) as executor:
        executor.allocate(64)
        wanted = [SequenceStep(tokens, 0, pages[[n]], rows) for n, rows in enumerate((2, 1, 0, 1))]
        logits = executor.step(Step(wanted, 16)).logits.copy()
        drawing = [
            wanted[0],
            SequenceStep(tokens, 0, pages[[1]], 1, draws=(Draw(0.0),)),
            wanted[2],
            SequenceStep(tokens, 0, pages[[3]], 1, draws=(Draw(1.0, 1, uniform=0.4),)),
        ]
        output = executor.step(Step(drawing, 16))
        np.testing.assert_allclose(output.logits, logits[:2], rtol=1e-5, atol=1e-5)
        assert list(output.tokens) == logits[2:].argmax(axis=1).tolist()
        for bad in (
            SequenceStep(tokens, 0, pages[:1], 2, draws=(Draw(0.0),)),
            SequenceStep(tokens, 0, pages[:1], 1, draws=(Draw(1.0, MAX_TOP_K + 1),)),
        ):
            with pytest.raises(InvalidInputError, match=f"1 draws for 2 rows|at most {MAX_TOP_K}"):
                executor.step(Step([bad], 16))
