"""The engine on a real, tiny model in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrai_cli import load
from astrai_cli.engine.engine import InferenceEngine

PROMPTS = [
    "The quick brown fox",
    "What is the capital of France?" * 4,
    "東京は日本の首都です。",
    "Привет",
    "a",
    "1 2 3 10 100",
    "def add(first, second):\n" * 6,
    "👋🌍 hello",
]


@pytest.fixture(scope="module")
def engine(babbler: Path) -> Iterator[InferenceEngine]:
    with load(babbler, backend="eager", max_context=256, max_prefill_chunk=16) as engine:
        yield engine


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.2, "seed": 11}])
def test_eight_at_once_get_the_tokens_they_get_alone(
    engine: InferenceEngine, sampling: dict[str, Any]
) -> None:
    options = {"max_tokens": 24, "ignore_eos": True, **sampling}
    together = engine.generate(PROMPTS, **options)
    assert together == [engine.generate(prompt, **options) for prompt in PROMPTS]


def test_text_is_the_decoding_of_the_ids(engine: InferenceEngine) -> None:
    for answer in engine.generate(PROMPTS, temperature=1.5, seed=3, max_tokens=40):
        assert answer.text == engine.text.tokenizer.decode(answer.token_ids)


def test_scores_choose_what_greedy_decoding_chose(engine: InferenceEngine) -> None:
    prompt = engine.text.encode_prompt(PROMPTS[0])
    answer = engine.generate(prompt, temperature=0, max_tokens=24, ignore_eos=True)
    logits = engine.score([*prompt, *answer.token_ids])
    chosen = logits[len(prompt) - 1 : -1].argmax(axis=1)
    np.testing.assert_array_equal(chosen, answer.token_ids)
