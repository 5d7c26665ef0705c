"""`astrai serve` beside llama.cpp's `llama-server`: chats that share a system prompt.

Each client holds conversations of several turns: the shared system prompt, short
questions that differ, answers of 64 to 128 tokens. Both servers run the same file on the
same machine, get the same questions, and take turns round by round.

    python benchmarks/against_llama_server.py smollm2-135m --llama-server PATH
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from llama_server import llama_server
from local_server import server
from preparation import note, prepare_beside_its_file

from astrai_cli.benchmark.load.client import LoadClient, Outcome
from astrai_cli.benchmark.load.report import LoadReport, Targets
from astrai_cli.benchmark.load.requests import LoadRequest
from astrai_cli.config import LimitsConfig

TEXT = Path(__file__).parent / "data" / "english.txt"
# Some 1,000 tokens.
SYSTEM_WORDS = 780
CONTEXT = 2048
ANSWER_TOKENS = (64, 128)
SUBJECTS = (
    *("harbours", "ships", "the sea", "the weather", "stone walls", "lighthouses", "trade"),
    *("rivers", "bridges", "cities", "forests", "mountains", "the seasons", "maps", "sailors"),
)
QUESTIONS = (
    "What does the text say about {}?",
    "Why do {} matter?",
    "Tell me a story about {}.",
    "How have {} changed with time?",
    "Explain {} to a child.",
)


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer_tokens: int


Conversations = list[list[Question]]
"""For each client, the questions of its turns."""


@dataclass(frozen=True, slots=True)
class Round:
    """One server's part of a round: tokens a second of answers; milliseconds, medians."""

    tokens_per_second: float
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Workload:
    """prefix_is_new: each round has a system prompt of its own; otherwise one serves all."""

    name: str
    prefix_is_new: bool


WORKLOADS = (
    Workload("system prompt known from before", False),
    Workload("new system prompt in each round", True),
)


def make_conversations(random: Random, clients: int, turns: int) -> Conversations:
    return [
        [
            Question(
                random.choice(QUESTIONS).format(random.choice(SUBJECTS)),
                random.randint(*ANSWER_TOKENS),
            )
            for _ in range(turns)
        ]
        for _ in range(clients)
    ]


def system_prompt(workload: Workload, number: int) -> str:
    words = TEXT.read_text(encoding="utf-8").split()[:SYSTEM_WORDS]
    # Different from its start, so that nothing of it is in a cache.
    day = f"Day {number}. " if workload.prefix_is_new else ""
    return f"{day}You answer questions about this text. {' '.join(words)}"


async def converse(client: LoadClient, system: str, questions: list[Question]) -> list[Outcome]:
    """The outcomes of one conversation's turns. Raises RuntimeError for one that failed."""
    messages = [{"role": "system", "content": system}]
    outcomes = []
    for question in questions:
        messages.append({"role": "user", "content": question.text})
        outcome = await client.send(LoadRequest(tuple(messages), question.answer_tokens))
        if outcome.error or outcome.completion_tokens != question.answer_tokens:
            raise RuntimeError(
                f"an answer of {outcome.completion_tokens} tokens instead of "
                f"{question.answer_tokens}: {outcome.error}"
            )
        messages.append({"role": "assistant", "content": outcome.text})
        outcomes.append(outcome)
    return outcomes


async def run_round(url: str, system: str, conversations: Conversations) -> Round:
    async with LoadClient(url, fields={"temperature": 0, "ignore_eos": True}) as client:
        all_outcomes = await asyncio.gather(
            *(converse(client, system, questions) for questions in conversations)
        )
    outcomes = [outcome for outcomes in all_outcomes for outcome in outcomes]
    report = LoadReport.of(outcomes, Targets())
    ttft, tpot = (report.distributions[name] for name in ("ttft", "tpot"))
    assert ttft is not None
    assert tpot is not None
    return Round(
        report.output_tokens_per_second, 1000 * ttft.percentiles[50], 1000 * tpot.percentiles[50]
    )


Pairs = list[tuple[Round, Round]]


def measure(workload: Workload, ours: str, theirs: str, options: argparse.Namespace) -> Pairs:
    """One round that is not counted, then `rounds` of astrai and llama-server in turn."""
    random = Random(options.seed)
    pairs: Pairs = []
    for turn in range(options.rounds + 1):
        note(f"{workload.name}, round {turn} of {options.rounds}")
        conversations = make_conversations(random, options.clients, options.turns)
        system = system_prompt(workload, turn)
        first, second = (
            asyncio.run(run_round(url, system, conversations)) for url in (ours, theirs)
        )
        pairs.append((first, second))
    return pairs[1:]


def ratios(pairs: Pairs) -> list[float]:
    return [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs]


def print_report(results: dict[str, Pairs]) -> None:
    print(f"{'medians of the rounds':34}{'astrai':>12}{'llama-server':>14}{'ratio':>24}")
    for name, pairs in results.items():
        print(name)
        low, *_, high = sorted(ratios(pairs))
        rows: Sequence[tuple[str, str]] = (
            ("tokens_per_second", "tokens of answers a second"),
            ("ttft", "to the first token, ms"),
            ("tpot", "each further token, ms"),
        )
        for key, label in rows:
            ours, theirs = (
                statistics.median(getattr(each[side], key) for each in pairs) for side in (0, 1)
            )
            spread = ""
            if key == "tokens_per_second":
                spread = f"{statistics.median(ratios(pairs)):.2f} ({low:.2f} to {high:.2f})"
            print(f"  {label:32}{ours:12.1f}{theirs:14.1f}{spread:>24}")


def as_json(results: dict[str, Pairs]) -> dict[str, Any]:
    return {
        name: {
            "astrai": [asdict(ours) for ours, _ in pairs],
            "llama_server": [asdict(theirs) for _, theirs in pairs],
            "ratios": ratios(pairs),
            "median_ratio": statistics.median(ratios(pairs)),
        }
        for name, pairs in results.items()
    }


def main() -> None:
    options = _options()
    model, file = prepare_beside_its_file(options.model)
    limits = LimitsConfig(
        max_context=CONTEXT, max_decode_sequences=options.clients, threads=options.threads
    )
    theirs = llama_server(
        options.llama_server,
        file,
        clients=options.clients,
        context=CONTEXT,
        threads=options.threads,
        extra=shlex.split(options.llama_arguments),
    )
    with server(model, limits) as ours_url, theirs as theirs_url:
        results = {
            workload.name: measure(workload, ours_url, theirs_url, options)
            for workload in WORKLOADS
        }
    note("")
    if options.json:
        print(json.dumps(as_json(results), indent=2))
    else:
        print_report(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact of the cpu backend")
    parser.add_argument("--llama-server", type=Path, required=True, help="the binary")
    parser.add_argument("--llama-arguments", default="", help="more arguments for it")
    parser.add_argument("--clients", type=int, default=8, help="conversations at once")
    parser.add_argument("--turns", type=int, default=3, help="questions of a conversation")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each side")
    parser.add_argument("--threads", type=int, default=2, help="threads of each server")
    parser.add_argument("--seed", type=int, default=0, help="of questions and lengths")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
