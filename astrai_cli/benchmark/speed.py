"""How fast an engine prefills and decodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from statistics import median

import numpy as np

from astrai_cli.config import BenchConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, Finish, GenerationRequest, SamplingParams
from astrai_cli.errors import AstraiError, ExecutionError, InvalidInputError
from backends.base import Progress

# Decoding starts from a short prompt, so that it is the step that is timed, not the history.
DECODE_PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tokens a second of one kind of work, one number a timed run.

    kind: "prefill" of a prompt of `size` tokens, or "decode" of `size` sequences together.
    """

    kind: str
    size: int
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def spread(self) -> float:
        """Largest minus smallest run, as a share of the median."""
        return (max(self.runs) - min(self.runs)) / self.median


def context_needed(config: BenchConfig) -> int:
    """Positions that the longest measured sequence takes."""
    return max(
        max(config.prompt_lengths) + 1,
        DECODE_PROMPT_TOKENS + config.decode_tokens,
    )


def measure_speed(
    engine: InferenceEngine, config: BenchConfig, progress: Progress
) -> list[Measurement]:
    """Run everything that `config` asks for, one measurement after the other.

    Raises as InferenceEngine.submit does, ExecutionError for a failed step, and
    InvalidInputError where the sequences never run all together.
    """
    bench = SpeedBench(engine, config.decode_tokens)
    work: list[tuple[str, int, Callable[[int], float]]]
    work = [("prefill", length, bench.prefill) for length in config.prompt_lengths]
    work += [("decode", batch, bench.decode) for batch in config.batch_sizes]
    results = []
    for done, (kind, size, run) in enumerate(work):
        progress(f"timing {kind} of {size}", done / len(work))
        for _ in range(config.warmup):
            run(size)
        results.append(Measurement(kind, size, tuple(run(size) for _ in range(config.repeats))))
    return results


class SpeedBench:
    """Single timed runs on one engine."""

    def __init__(self, engine: InferenceEngine, decode_tokens: int) -> None:
        self._engine = engine
        self._decode_tokens = decode_tokens
        self._random = np.random.default_rng(0)

    def prefill(self, length: int) -> float:
        """Prompt tokens a second, from the request to its first token."""
        started = time.perf_counter()
        timed = self._start(length, 1)
        timed.wait()
        return length / (timed.first - started)

    def decode(self, batch: int, prompt_length: int = DECODE_PROMPT_TOKENS) -> float:
        """Tokens a second of `batch` sequences, while all of them are decoding."""
        sequences = self._start_together(batch, prompt_length)
        for each in sequences:
            each.wait()
        start = max(each.first for each in sequences)
        end = min(each.last for each in sequences)
        tokens = sum(each.tokens_between(start, end) for each in sequences)
        if not tokens:
            raise InvalidInputError(
                f"--decode-tokens: {self._decode_tokens} are over before {batch} sequences "
                "run together"
            )
        return tokens / (end - start)

    def _start_together(self, batch: int, prompt_length: int) -> list[_TimedAnswer]:
        """Answers that begin with the same step, however busy the machine is.

        The engine's own thread submits them, between two steps.
        """
        requests = [self._request(prompt_length, self._decode_tokens) for _ in range(batch)]
        answers = [_TimedAnswer() for _ in requests]
        submitted: SimpleQueue[AstraiError | None] = SimpleQueue()

        def submit_all(event: Event) -> None:
            if isinstance(event, Finish):
                try:
                    for request, answer in zip(requests, answers, strict=True):
                        self._engine.submit(request, answer.put)
                except AstraiError as error:
                    submitted.put(error)
                else:
                    submitted.put(None)

        self._engine.submit(self._request(1, 1), submit_all, wait=True)
        if error := submitted.get():
            raise error
        return answers

    def _start(self, prompt_length: int, max_tokens: int) -> _TimedAnswer:
        answer = _TimedAnswer()
        self._engine.submit(self._request(prompt_length, max_tokens), answer.put, wait=True)
        return answer

    def _request(self, prompt_length: int, max_tokens: int) -> GenerationRequest:
        # New random tokens each time, so that no prefix is found in a cache.
        vocabulary = self._engine.info.spec.vocab_size
        prompt = tuple(self._random.integers(0, vocabulary, prompt_length).tolist())
        return GenerationRequest(
            prompt, SamplingParams(temperature=0.0), max_tokens=max_tokens, ignore_eos=True
        )


class _TimedAnswer:
    """A sink that notes when each token came."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._finish: SimpleQueue[Finish] = SimpleQueue()

    def put(self, event: Event) -> None:
        if isinstance(event, Finish):
            self._finish.put(event)
        else:
            self._times.extend([time.perf_counter()] * len(event.token_ids))

    def wait(self) -> None:
        """Raises ExecutionError for an answer that ended early."""
        finish = self._finish.get()
        if finish.reason != "length":
            raise ExecutionError(f"a timed request ended early: {finish.error or finish.reason}")

    @property
    def first(self) -> float:
        return self._times[0]

    @property
    def last(self) -> float:
        return self._times[-1]

    def tokens_between(self, start: float, end: float) -> int:
        """Tokens that came after `start`, up to and with `end`."""
        return sum(start < moment <= end for moment in self._times)
