"""Answers with drafts beside those without."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from draft_requests import Talk

from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, Finish, GenerationRequest
from astrai_cli.engine.result import Completion, GenerateResult

# Tokens that a step may give.
BLOCK = 8

Answers = Sequence[Completion]
"""To a talk's request, and to its second where it has one."""


def hold(engine: InferenceEngine, talks: Sequence[Talk], n_at_once: int) -> list[Answers]:
    """The answers to talks, n_at_once of which run together; sessions are deleted behind them."""
    with ThreadPoolExecutor(n_at_once) as clients:
        return list(clients.map(lambda talk: _hold_one(engine, talk), talks))


def _hold_one(engine: InferenceEngine, talk: Talk) -> Answers:
    answers = [_ask(engine, talk.request, talk.leaves_after)]
    if talk.follow:
        prompt = (*talk.request.prompt, *answers[0].token_ids, *talk.follow)
        answers.append(_ask(engine, replace(talk.request, prompt=prompt)))
        # All that was run is in the cells, but for the last token.
        assert answers[1].usage.cached_tokens >= answers[0].usage.total_tokens - 1
    if talk.request.session_id is not None:
        engine.delete_session(talk.request.session_id)
    return answers


def _ask(
    engine: InferenceEngine, request: GenerationRequest, leaves_after: int | None = None
) -> Completion:
    """Cancelled from the engine's own thread, with the first piece that has the tokens for it."""
    result = GenerateResult()
    submitted = threading.Event()
    n_tokens = 0

    def take(event: Event) -> None:
        nonlocal n_tokens
        result.put(event)
        if leaves_after is None or isinstance(event, Finish):
            return
        n_tokens += len(event.token_ids)
        if n_tokens >= leaves_after:
            submitted.wait()
            handle.cancel()

    handle = engine.submit(request, take, wait=True)
    submitted.set()
    return result.wait_completion()


@dataclass
class Comparison:
    """Of answers to those of an engine without drafts, each of which is asked for once.

    rounding: how near two logits must be for their order to depend on what else is in a step.
    n_asked, n_differing: answers compared, and those that went another way at such a place.
    n_cached, n_left: tokens of prompts that were in the cache, and answers that were cancelled.
    """

    plain: InferenceEngine = field(repr=False)
    rounding: float
    n_asked: int = 0
    n_differing: int = 0
    n_cached: int = 0
    n_left: int = 0
    _known: dict[Talk, Answers] = field(default_factory=dict, repr=False)

    def check(self, talks: Sequence[Talk], answers: Sequence[Answers]) -> None:
        for talk, given in zip(talks, answers, strict=True):
            if talk not in self._known:
                (self._known[talk],) = hold(self.plain, [replace(talk, leaves_after=None)], 1)
            prompt = talk.request.prompt
            for expected, actual in zip(self._known[talk], given, strict=True):
                self.n_asked += 1
                self.n_cached += actual.usage.cached_tokens
                self.n_left += actual.finish_reason == "cancelled"
                if not self._is_same(talk, expected, actual):
                    self._check_margin(replace(talk.request, prompt=prompt), expected, actual)
                    self.n_differing += 1
                    break
                prompt = (*prompt, *expected.token_ids, *talk.follow)

    def _is_same(self, talk: Talk, expected: Completion, actual: Completion) -> bool:
        """False where other tokens came; whatever else differs fails."""
        n = len(actual.token_ids)
        if actual.token_ids != expected.token_ids[:n]:
            return False
        if actual.finish_reason == "cancelled":
            assert talk.leaves_after is not None, talk
            assert n >= talk.leaves_after, talk
            assert expected.text.startswith(actual.text), talk
            return True
        assert talk.leaves_after is None or n <= talk.leaves_after + 2 * BLOCK, talk
        assert replace(actual, logprobs=expected.logprobs) == expected, talk
        self._check_logprobs(expected, actual)
        return True

    def _check_logprobs(self, expected: Completion, actual: Completion) -> None:
        one, other = (
            [each.logprob for each in completion.logprobs]
            + [logprob for each in completion.logprobs for _, logprob in each.top]
            for completion in (expected, actual)
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=self.rounding)

    def _check_margin(
        self, request: GenerationRequest, expected: Completion, actual: Completion
    ) -> None:
        """Whether the two tokens at the first place that differs are as likely as each other."""
        pairs = zip(expected.token_ids, actual.token_ids, strict=False)
        differs = [one != other for one, other in pairs]
        assert any(differs), (request, expected, actual)
        place = differs.index(True)
        ids = (*request.prompt, *expected.token_ids[:place])
        logits = self.plain.score(ids, [image.data for image in request.images])[-1]
        one, other = logits[expected.token_ids[place]], logits[actual.token_ids[place]]
        assert logits.max() - min(one, other) <= self.rounding, (request, expected, actual)
