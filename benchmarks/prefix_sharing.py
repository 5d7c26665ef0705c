"""What sharing prefixes saves, and what pages cost.

First, requests with one long prefix and an ending each: one alone on a cold cache,
then others one by one, then all at once on another cold cache. The statistics tell
how many tokens were run. Then, answers of many sequences from the paged and the
contiguous cache in turn, by the median time of a step.

    python benchmarks/prefix_sharing.py MODEL --backend cpu
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from preparation import prepare

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.request import Event, GenerationRequest, Piece, SamplingParams
from astrai_cli.engine.result import GenerateResult
from astrai_cli.loading import RunnableModel, open_engine

GREEDY = SamplingParams(temperature=0)


@dataclass
class Answer:
    """One request's tokens and when they came, in seconds since it was submitted."""

    result: GenerateResult = field(init=False)
    submitted: float = 0.0
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.result = GenerateResult(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Piece) and event.token_ids:
            self.times.append(time.perf_counter() - self.submitted)

    def start(self, engine: InferenceEngine, prompt: Sequence[int], n_tokens: int) -> None:
        request = GenerationRequest(tuple(prompt), GREEDY, n_tokens, ignore_eos=True)
        self.submitted = time.perf_counter()
        engine.submit(request, self.result.put)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.result.wait_completion().token_ids


def ask(engine: InferenceEngine, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[Answer]:
    """Answers to prompts that arrive together."""
    answers = [Answer() for _ in prompts]
    for answer, prompt in zip(answers, prompts, strict=True):
        answer.start(engine, prompt, n_tokens)
    for answer in answers:
        answer.result.wait_completion()
    return answers


def share_prefix(model: RunnableModel, options: argparse.Namespace) -> None:
    limits = LimitsConfig(
        max_context=options.prefix + 256,
        max_decode_sequences=options.requests,
        threads=options.threads,
        page_size=options.page_size,
    )
    with open_engine(model, limits) as engine:
        prefix = list(range(1000, 1000 + options.prefix))
        prompts = [[*prefix, *(100 + n for _ in range(10)), n] for n in range(options.requests)]
        cold = ask(engine, prompts[:1], 16)[0]
        later = [ask(engine, [prompt], 16)[0] for prompt in prompts[1:]]
    with open_engine(model, limits) as engine:
        together = ask(engine, prompts, 16)
        stats = engine.get_stats()
    with open_engine(model, limits.model_copy(update={"cache": "contiguous"})) as engine:
        alone = [ask(engine, [prompt], 16)[0] for prompt in prompts[: options.checked]]
    first = cold.times[0]
    print(f"a prefix of {options.prefix} tokens and an ending of 11, {options.requests} times")
    print(f"  first token, cold                 {first:8.3f} s")
    medians = [statistics.median(a.times[0] for a in each) for each in (later, together[1:])]
    print(f"  later ones, one by one (median)   {medians[0]:8.3f} s {medians[0] / first:6.3f}")
    print(f"  all at once (median of the rest)  {medians[1]:8.3f} s {medians[1] / first:6.3f}")
    print(f"  tokens prefilled, all at once     {stats['tokens_prefilled']:8d}")
    print(f"  tokens reused                     {stats['tokens_reused']:8d}")
    same = [answer.token_ids for answer in alone]
    equal = (
        same
        == [a.token_ids for a in [cold, *later][: options.checked]]
        == [a.token_ids for a in together[: options.checked]]
    )
    print(f"  answers equal those without it    {equal!s:>8}")


def step_seconds(engine: InferenceEngine, options: argparse.Namespace) -> list[float]:
    """Seconds between the tokens of answers given together."""
    prompts = [[500 + n] * (options.length - options.tokens) for n in range(options.sequences)]
    times = ask(engine, prompts, options.tokens)[-1].times
    # The first few tokens come while other prompts still run.
    return [later - earlier for earlier, later in pairwise(times[1:])]


def compare_decode(model: RunnableModel, options: argparse.Namespace) -> None:
    common = {
        "max_context": options.length,
        "max_decode_sequences": options.sequences,
        "threads": options.threads,
    }
    names = ("contiguous", "paged")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(options.repeats):
        for name in names if round_ % 2 else names[::-1]:
            limits = LimitsConfig.model_validate(
                {**common, "cache": name, "page_size": options.page_size}
            )
            with open_engine(model, limits) as engine:
                seconds[name] += step_seconds(engine, options)
    medians = {name: statistics.median(seconds[name]) for name in names}
    print(f"{options.sequences} answers at {options.length} tokens, pages of {options.page_size}")
    for name in names:
        print(f"  {name:30}{options.sequences / medians[name]:8.1f} tokens/s")
    print(f"  {'paged : contiguous':30}{medians['contiguous'] / medians['paged']:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--page-size", type=int, default=LimitsConfig().page_size)
    parser.add_argument("--requests", type=int, default=16, help="requests that share a prefix")
    parser.add_argument("--prefix", type=int, default=1500, help="tokens they share")
    parser.add_argument("--checked", type=int, default=4, help="answers compared with cold ones")
    parser.add_argument("--sequences", type=int, default=8, help="answers at once")
    parser.add_argument("--length", type=int, default=1000, help="tokens of each with its prompt")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=4, help="rounds of each cache")
    options = parser.parse_args()
    model = prepare(options.model, options.backend)
    share_prefix(model, options)
    compare_decode(model, options)


if __name__ == "__main__":
    main()
