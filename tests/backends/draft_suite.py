"""What block drafts must do on every backend, on the trained model with a real acceptance.

A backend's test module subclasses `DraftSuite` and gives the fixture `open_engine`: what makes an
engine of the chat model with its draft, from limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from muse_fixtures import CHAT, chat_cases, image_cases

from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import GenerationRequest, SamplingParams
from astrai_cli.engine.result import Completion, GenerateResult
from astrai_cli.errors import InvalidInputError

OpenEngine = Callable[..., InferenceEngine]
GREEDY = SamplingParams(temperature=0)
MAX_TOKENS = 96


def requests() -> Iterator[GenerationRequest]:
    """Many that differ in their beginnings, ends, stops and sessions; some share a prefix."""
    cases = chat_cases()
    cuts = (0, 1, 2, 5)
    for (number, case), cut in itertools.product(enumerate(cases), cuts):
        ids = tuple(case["prompt_ids"])
        # A cut prompt goes on with the first tokens of another answer.
        other = tuple(cases[(number + cut) % len(cases)]["greedy_ids"][:cut])
        yield GenerationRequest(
            ids + other,
            GREEDY,
            max_tokens=(MAX_TOKENS, 40, 7, 1)[cut % 4],
            stop=() if cut != 2 else ("e", "the"),
            logprobs=1 if cut == 1 else None,
            session_id=f"s{number}" if cut == 5 else None,
        )


def ask_together(engine: InferenceEngine, asked: list[GenerationRequest]) -> list[Completion]:
    results = [GenerateResult() for _ in asked]
    for result, request in zip(results, asked, strict=True):
        engine.submit(request, result.put, wait=True)
    return [result.wait_completion() for result in results]


def told(answers: list[Completion]) -> list[tuple[Any, ...]]:
    return [
        (each.text, each.token_ids, each.finish_reason, each.matched_stop, each.usage)
        for each in answers
    ]


class DraftSuite:
    """The suite.

    least_margin: of two logits that rounding does not turn round. every: of how many
    requests one is asked, where each takes long.
    """

    least_margin: ClassVar[float] = 0.0
    every: ClassVar[int] = 1

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, open_engine: OpenEngine) -> list[tuple[Any, ...]]:
        """The answers to all requests without drafts, one after the other."""
        with open_engine() as engine:
            return told([ask_together(engine, [each])[0] for each in [*requests()][:: cls.every]])

    def test_steps_are_those_of_other_implementations(self, open_engine: OpenEngine) -> None:
        counts, expected = [], []
        with open_engine(dflash=True, adaptive_drafts=False) as engine:
            for case in chat_cases()[:: self.every]:
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

    @pytest.mark.parametrize("n_draft", [1, 2, 4, 7])
    def test_answers_of_eight_at_once_are_those_without_drafts(
        self, open_engine: OpenEngine, plain: list[tuple[Any, ...]], n_draft: int
    ) -> None:
        asked = [*requests()][:: self.every]
        with open_engine(
            dflash=True, dflash_n_draft=n_draft, adaptive_drafts=n_draft == 4
        ) as engine:
            assert told(ask_together(engine, asked)) == plain
            stats = engine.get_stats()
            assert stats["drafts"] > 0 or n_draft == 4
            # A cancelled answer is the beginning of the whole one.
            request = replace(asked[0], session_id=None)
            result = GenerateResult()
            handle = engine.submit(request, result.put)
            result.wait()
            handle.cancel()
            cut = result.wait_completion().token_ids
            assert cut == plain[0][1][: len(cut)]

    def test_a_session_goes_on_with_drafts_from_the_cells_it_has(
        self, open_engine: OpenEngine
    ) -> None:
        case = chat_cases()[10]
        first = GenerationRequest(tuple(case["prompt_ids"]), GREEDY, 40, session_id="s")

        def talk(engine: InferenceEngine) -> list[tuple[Any, ...]]:
            one = ask_together(engine, [first])[0]
            ids = (*first.prompt, *one.token_ids, *case["prompt_ids"][-12:])
            two = ask_together(engine, [replace(first, prompt=ids)])[0]
            assert two.usage.cached_tokens == len(first.prompt) + len(one.token_ids) - 1
            return told([one, two])

        with open_engine() as engine:
            expected = talk(engine)
        with open_engine(dflash=True, adaptive_drafts=False) as engine:
            assert talk(engine) == expected

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
