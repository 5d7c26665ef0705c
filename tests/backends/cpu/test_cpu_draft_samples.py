"""Sampled answers of the trained model have one distribution with its block draft and without.

2,000 samples of each; 20,000 with ASTRAI_TEST_DRAFTS=all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import chi_square
import numpy as np
import pytest
from numpy.typing import NDArray
from wrong_verification import Redrawn

from astrai_cli import load
from astrai_cli.artifact import Artifact
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.generation import GenerationTask
from astrai_cli.engine.request import GenerationRequest, SamplingParams
from astrai_cli.engine.result import GenerateResult

N_SAMPLES = 20_000 if os.environ.get("ASTRAI_TEST_DRAFTS") == "all" else 2_000
N_AT_ONCE = 50
LENGTH = 3
# The model can't add: two digits follow that are a guess of its own.
PROMPT = (
    "<|start|>user<|message|>What is 7 plus 17?<|eot|>"
    "<|start|>assistant to=user<|message|>7 plus 17 is"
)

Samples = Counter[tuple[int, ...]]


class _Greedy(Redrawn):
    """Another: a guess is accepted wherever it is the likeliest token."""

    def _sample(self, logits: NDArray[np.float32]) -> int:
        guess = int(self.history[self.n_known]) if self.n_known < self._end_of_draft else -1
        return guess if guess == logits.argmax() else GenerationTask._sample(self, logits)


def open_engine(artifact: Artifact, **limits: Any) -> InferenceEngine:
    return load(
        artifact.path,
        threads=1,
        max_context=64,
        page_size=8,
        max_decode_sequences=N_AT_ONCE,
        **limits,
    )


@pytest.fixture(scope="module")
def engine(drafting_artifact: Artifact) -> Iterator[InferenceEngine]:
    with open_engine(drafting_artifact, dflash=True, adaptive_drafts=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def without_drafts(drafting_artifact: Artifact) -> Samples:
    with open_engine(drafting_artifact) as engine:
        return samples(engine, 10**6)


def samples(engine: InferenceEngine, seed: int) -> Samples:
    """The first tokens of answers; those of a request share its prompt, and no seed is used twice.

    A block drafts the second and the third of them.
    """
    prompt = tuple(engine.text.encode_prompt(PROMPT))
    seen: Samples = Counter()
    for number in range(N_SAMPLES // N_AT_ONCE):
        sampling = SamplingParams(temperature=1, top_k=0, seed=seed + number)
        request = GenerationRequest(prompt, sampling, LENGTH + 1, ignore_eos=True)
        results = [GenerateResult() for _ in range(N_AT_ONCE)]
        engine.submit_choices(request, [result.put for result in results])
        seen.update(result.wait_completion().token_ids[:LENGTH] for result in results)
    return seen


def compare(one: Samples, other: Samples) -> tuple[float, float]:
    """The statistic, and what it may be."""
    outcomes = sorted(one | other)
    counts = (np.array([sample[each] for each in outcomes]) for sample in (one, other))
    statistic, degrees = chi_square.compare(*counts)
    print(
        f"{statistic:.1f} of {degrees} degrees of freedom, at most {chi_square.bound(degrees):.1f}"
    )
    return statistic, chi_square.bound(degrees)


def test_samples_with_drafts_have_the_distribution_of_those_without(
    engine: InferenceEngine, without_drafts: Samples
) -> None:
    drafted = samples(engine, 0)
    stats = engine.get_stats()
    # Neither all of the guesses are right nor none.
    assert 0.2 < stats["tokens_accepted"] / stats["tokens_proposed"] < 0.8
    assert len(drafted) > 20
    statistic, most = compare(drafted, without_drafts)
    assert statistic < most


@pytest.mark.parametrize("kind", [Redrawn, _Greedy])
def test_a_wrong_rule_of_acceptance_would_be_noticed(
    engine: InferenceEngine,
    without_drafts: Samples,
    kind: type[GenerationTask],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("astrai_cli.engine.engine.GenerationTask", kind)
    statistic, most = compare(samples(engine, 0), without_drafts)
    assert statistic > 2 * most
