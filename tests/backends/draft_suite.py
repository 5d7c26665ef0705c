"""What block drafts must do on every backend, on the trained model with a real acceptance.

A backend's test module subclasses `DraftSuite` and gives the fixture `open_engine`: what makes an
engine of the chat model with its draft, from limits.

Every length of drafts meets short ones of the 200 talks, alone and 8 at once; all lengths
together meet every kind that has any. With ASTRAI_TEST_DRAFTS=all each length meets all talks,
which takes a minute (cpu) to an hour (mlx).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from draft_answers import Comparison, hold
from draft_requests import Talk, greedy_talks, sampled_talks, short_talks
from muse_fixtures import CHAT, chat_cases, image_cases

from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.errors import InvalidInputError

OpenEngine = Callable[..., InferenceEngine]
ALL = os.environ.get("ASTRAI_TEST_DRAFTS") == "all"
MAX_TOKENS = 96


class DraftSuite:
    """The suite.

    least_margin: of two logits that the rounding of weights does not turn round. rounding: as in
    Comparison; 0 where logits are those of a row alone, so that seeds give the same tokens too.
    n_talks: for each length of drafts, where all of them take too long. every: of how many
    of the fixture's cases one is taken.
    """

    least_margin: ClassVar[float] = 0.0
    rounding: ClassVar[float] = 1e-4
    n_talks: ClassVar[int] = 5
    every: ClassVar[int] = 1

    @pytest.fixture(scope="class")
    @classmethod
    def comparison(cls, open_engine: OpenEngine) -> Iterator[Comparison]:
        with open_engine() as engine:
            yield Comparison(engine, cls.rounding)

    def test_steps_are_those_of_other_implementations(self, open_engine: OpenEngine) -> None:
        counts, expected = [], []
        with open_engine(dflash=True, adaptive_drafts=False) as engine:
            for case in chat_cases()[:: 1 if ALL else self.every]:
                before = engine.get_stats()
                answer = engine.generate(case["prompt_ids"], temperature=0, max_tokens=MAX_TOKENS)
                after = engine.get_stats()
                if case["smallest_margin"] > self.least_margin:
                    assert list(answer.token_ids) == case["greedy_ids"]
                steps, accepted = (after[key] - before[key] for key in ("steps", "tokens_accepted"))
                # The first step is the prompt's.
                counts.append((steps - 1, accepted))
                expected.append((case["draft_target_steps"], case["draft_accepted"]))
        assert counts == expected

    @pytest.mark.timeout(0 if ALL else 300)
    @pytest.mark.parametrize("n_draft", range(1, 8))
    def test_answers_are_those_without_drafts(
        self, open_engine: OpenEngine, comparison: Comparison, n_draft: int
    ) -> None:
        talks = self._talks(n_draft)
        with open_engine(dflash=True, dflash_n_draft=n_draft, adaptive_drafts=False) as engine:
            for n_at_once in (8, 1):
                comparison.check(talks, hold(engine, talks, n_at_once))
            stats = engine.get_stats()
        assert stats["tokens_accepted"] > 0
        assert comparison.n_cached > 0
        counts = {key: stats[key] for key in ("drafts", "tokens_proposed", "tokens_accepted")}
        print(f"{n_draft} tokens a draft: {counts}; so far {comparison}")

    def test_lengths_that_adapt_change_no_answer(
        self, open_engine: OpenEngine, comparison: Comparison
    ) -> None:
        talks = self._talks(7)
        with open_engine(dflash=True) as engine:
            comparison.check(talks, hold(engine, talks, 8))

    def _talks(self, n_draft: int) -> list[Talk]:
        talks = greedy_talks() + ([] if self.rounding else sampled_talks())
        if ALL:
            return talks
        n = self.n_talks
        return short_talks(talks)[n * (n_draft - 1) : n * n_draft]

    def test_an_image_has_rows_of_the_context_too(self, open_engine: OpenEngine) -> None:
        case = image_cases()[0]
        image = (CHAT / case["image"]).read_bytes()
        prompt = f"{case['before']}<|image_start|><|patch|><|image_end|>{case['after']}"
        options: dict[str, Any] = {"temperature": 0, "max_tokens": len(case["greedy_ids"])}
        with open_engine(dflash=True, adaptive_drafts=False) as engine:
            answer = engine.generate(prompt, images=[image], **options)
            # Again from the cache, where the image's own rows are.
            again = engine.generate(prompt, images=[image], **options)
        assert list(answer.token_ids) == list(again.token_ids) == case["greedy_ids"]
        assert again.usage.cached_tokens > 0

    def test_a_longer_draft_than_was_exported_is_refused(self, open_engine: OpenEngine) -> None:
        with pytest.raises(InvalidInputError, match=r"dflash_n_draft is 8.*blocks of 8.*at most 7"):
            open_engine(dflash=True, dflash_n_draft=8)
        with pytest.raises(InvalidInputError, match="guesses have one source"):
            open_engine(dflash=True, speculate="ngram")
