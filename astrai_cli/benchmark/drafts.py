"""What drafts bring: the same answers with and without them, in turn on one engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from astrai_cli.benchmark.replay import ReplayProposer
from astrai_cli.config import BenchConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.result import Completion, GenerateResult
from backends.base import Progress

# Without a text: so many random tokens, twice, and the first of them once more.
_REPEATED = 64
_BEGUN = 8


@dataclass(frozen=True, slots=True)
class DraftMeasurement:
    """Tokens a second of `batch` answers together, without and with drafts, run by run.

    proposed, accepted: tokens of all drafts, of which there were n_drafts.
    """

    batch: int
    plain: tuple[float, ...]
    drafted: tuple[float, ...]
    n_drafts: int
    proposed: int
    accepted: int

    @property
    def gain(self) -> float:
        """The median of the runs' speeds with drafts to those of their neighbours without."""
        return median(one / other for one, other in zip(self.drafted, self.plain, strict=True))

    @property
    def acceptance(self) -> float:
        """The part of all proposed tokens that were right."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def accepted_length(self) -> float:
        """The mean of a draft's tokens that were right."""
        return self.accepted / self.n_drafts if self.n_drafts else 0.0


def draft_prompt_length(config: BenchConfig) -> int:
    """Tokens of the prompt that drafts are timed on; a text is cut to as many."""
    return 2 * _REPEATED + _BEGUN if config.draft_prompt is None else max(config.prompt_lengths)


def measure_drafts(
    engine: InferenceEngine,
    prompt: Sequence[int],
    config: BenchConfig,
    progress: Progress,
    replay: ReplayProposer | None = None,
) -> list[DraftMeasurement]:
    """Time answers to a prompt. replay: the engine's proposer, to be told the answers first.

    Raises as InferenceEngine.generate does.
    """
    bench = DraftBench(engine, prompt, config.decode_tokens)
    results = []
    for done, batch in enumerate(config.batch_sizes):
        progress(f"timing drafts for {batch}", done / len(config.batch_sizes))
        results.append(bench.measure(batch, config.warmup, config.repeats, replay))
    return results


def repeating_prompt(vocabulary: int) -> list[int]:
    """Random tokens whose continuation has been seen."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, _REPEATED).tolist()
    return [*tokens, *tokens, *tokens[:_BEGUN]]


class DraftBench:
    """Single timed runs of one prompt on one engine."""

    def __init__(self, engine: InferenceEngine, prompt: Sequence[int], n_tokens: int) -> None:
        self._engine = engine
        self._prompt = tuple(prompt)
        self._n_tokens = n_tokens

    def measure(
        self, batch: int, warmup: int, repeats: int, replay: ReplayProposer | None
    ) -> DraftMeasurement:
        if replay is not None:
            answer, _ = self._run(1, drafts=False)[0]
            replay.answers = {self._prompt: answer.token_ids}
        for _ in range(warmup):
            self.speed(batch, drafts=True)
        before = self._engine.get_stats()
        plain, drafted = [], []
        for _ in range(repeats):
            plain.append(self.speed(batch, drafts=False))
            drafted.append(self.speed(batch, drafts=True))
        after = self._engine.get_stats()
        counts = [
            after[key] - before[key] for key in ("drafts", "tokens_proposed", "tokens_accepted")
        ]
        return DraftMeasurement(batch, tuple(plain), tuple(drafted), *counts)

    def speed(self, batch: int, *, drafts: bool) -> float:
        """Tokens a second of all answers, from the last first token to the last token."""
        runs = self._run(batch, drafts=drafts)
        start = max(times[0][0] for _, times in runs)
        end = max(times[-1][0] for _, times in runs)
        tokens = sum(n for _, times in runs for moment, n in times if moment > start)
        return tokens / (end - start)

    def _run(self, batch: int, *, drafts: bool) -> list[tuple[Completion, list[tuple[float, int]]]]:
        """Answers, each with the moments of its pieces and the tokens that came then."""
        request = GenerationRequest(
            self._prompt,
            SamplingParams(temperature=0.0),
            max_tokens=self._n_tokens,
            ignore_eos=True,
            drafts=drafts,
        )
        timed = [_TimedAnswer() for _ in range(batch)]
        for answer in timed:
            self._engine.submit(request, answer.result.put, wait=True)
        return [(answer.result.wait_completion(), answer.times) for answer in timed]


class _TimedAnswer:
    """Notes when how many tokens came."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []
        self.result = GenerateResult(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Piece) and event.token_ids:
            self.times.append((time.perf_counter(), len(event.token_ids)))
