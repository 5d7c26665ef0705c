"""The mlx backend on this machine, beside mlx-lm on the very same folder: one table.

    python benchmarks/mlx_check.py smollm2-135m

Numbers: the logits of a text, and the tokens after it, against mlx-lm's own. Speed: prefill
and decode of the engine, and chats with `astrai serve` and with mlx-lm's server, round by
round. Made to be run once on a Mac; it runs on Linux too, slowly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from local_server import server
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from mlx_server import mlx_server
from numpy.typing import NDArray
from preparation import note, prepare

from astrai_cli.benchmark.load.client import LoadClient, Outcome
from astrai_cli.benchmark.load.requests import LoadRequest
from astrai_cli.benchmark.quality import compare
from astrai_cli.benchmark.speed import SpeedBench
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.loading import open_engine

TEXT = Path(__file__).parent / "data" / "english.txt"
WINDOW = 256
GIB = 2**30
Row = tuple[str, str, str]
"""What was measured, of astrai, of mlx-lm."""


class MlxLm:
    """mlx-lm's model of the folder, run as mlx-lm runs it."""

    def __init__(self, folder: Path) -> None:
        self._model, _ = load_model(folder)

    def score(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits float32 [T, vocabulary] of a text."""
        rows = self._model(mx.array([list(tokens)]))[0].astype(mx.float32)
        return np.array(rows)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """The n likeliest tokens after a prompt, one by one."""
        cache = make_prompt_cache(self._model)
        tokens = list(prompt)
        chosen: list[int] = []
        for _ in range(n):
            logits = self._model(mx.array([tokens]), cache=cache)
            tokens = [int(mx.argmax(logits[0, -1]).item())]
            chosen += tokens
        return chosen


def check_numbers(engine: InferenceEngine, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Logits and greedy tokens against mlx-lm's."""
    theirs = MlxLm(folder)
    tokens = engine.text.encode(TEXT.read_text(encoding="utf-8"))[: options.tokens]
    quality = compare(
        theirs.score, engine.score, tokens, WINDOW, lambda done: note(f"scoring {done:.0%}")
    )
    note("greedy answers")
    prompts = [tokens[begin : begin + 40] for begin in range(0, 8 * 20, 20)]
    answers = engine.generate(prompts, temperature=0, max_tokens=options.answer, ignore_eos=True)
    same = sum(
        list(answer.token_ids) == theirs.greedy(prompt, options.answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    )
    return [
        ("perplexity", f"{quality.perplexity:.3f}", f"{quality.reference_perplexity:.3f}"),
        ("KL from mlx-lm, nats", f"{quality.kl:.2e}", ""),
        ("same likeliest token", f"{quality.top1_agreement:.2%}", ""),
        (f"answers of {options.answer} that are mlx-lm's", f"{same} of {len(prompts)}", ""),
    ]


def check_speed(engine: InferenceEngine, options: argparse.Namespace) -> list[Row]:
    """Tokens a second of the engine alone, medians."""
    bench = SpeedBench(engine, options.answer)
    work = {f"prefill of {WINDOW}": lambda: bench.prefill(WINDOW)}
    for n in (1, options.clients):
        work[f"decode of {n}"] = lambda n=n: bench.decode(n, WINDOW)
    rows = []
    for name, run in work.items():
        note(name)
        speeds = [run() for _ in range(options.rounds + 1)][1:]
        rows.append((f"{name}, tokens/s", f"{statistics.median(speeds):.1f}", ""))
    return rows


async def chats(url: str, model: str | None, options: argparse.Namespace) -> list[Outcome]:
    """One round: every client asks once, all at the same time."""
    async with LoadClient(url, model=model, fields={"temperature": 0}) as client:
        return await asyncio.gather(
            *(
                client.send(
                    LoadRequest(
                        ({"role": "user", "content": f"Tell me a long story about {n} ships."},),
                        options.answer,
                    )
                )
                for n in range(options.clients)
            )
        )


def throughput(outcomes: Sequence[Outcome]) -> float:
    """Tokens a second of all answers. Raises RuntimeError where one failed."""
    for outcome in outcomes:
        if outcome.error:
            raise RuntimeError(f"an answer failed: {outcome.error}")
    seconds = max(each.ended for each in outcomes) - min(each.started for each in outcomes)
    return sum(each.completion_tokens for each in outcomes) / seconds


def check_servers(ours: str, theirs: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Both servers in turn; the first round is not counted."""
    speeds: list[tuple[float, float]] = []
    firsts: list[tuple[float, float]] = []
    for turn in range(options.rounds + 1):
        note(f"chats, round {turn} of {options.rounds}")
        sides = [
            asyncio.run(chats(url, model, options))
            for url, model in ((ours, None), (theirs, str(folder)))
        ]
        speeds.append((throughput(sides[0]), throughput(sides[1])))
        firsts.append(
            (
                statistics.median(each.ttft or 0.0 for each in sides[0]),
                statistics.median(each.ttft or 0.0 for each in sides[1]),
            )
        )

    def row(name: str, pairs: list[tuple[float, float]], scale: float = 1.0) -> Row:
        medians = (statistics.median(pair[side] for pair in pairs[1:]) for side in (0, 1))
        own, other = (f"{scale * value:.1f}" for value in medians)
        return name, own, other

    return [
        row(f"{options.clients} chats at once, tokens/s", speeds),
        row("time to first token, ms", firsts, 1000),
    ]


def main() -> None:
    options = _options()
    model = prepare(options.model, "mlx")
    limits = LimitsConfig(
        max_context=WINDOW + 2 * options.answer + 64, max_decode_sequences=options.clients
    )
    with open_engine(model, limits) as engine:
        info = engine.info.details
        rows = check_numbers(engine, model.source, options)
        mx.reset_peak_memory()
        rows += check_speed(engine, options)
        rows.append(("peak memory, GiB", f"{mx.get_peak_memory() / GIB:.2f}", ""))
    mx.clear_cache()
    with server(model, limits) as ours, mlx_server(model.source) as theirs:
        rows += check_servers(ours, theirs, model.source, options)
    note("")
    _print(info, rows, as_json=options.json)


def _print(info: dict[str, Any], rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"info": info, "rows": rows}, indent=2))
        return
    print(f"{info}\n{'':40}{'astrai':>12}{'mlx-lm':>12}")
    for name, ours, theirs in rows:
        print(f"{name:40}{ours:>12}{theirs:>12}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact of the mlx backend")
    parser.add_argument("--clients", type=int, default=8, help="chats at once")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the scored text")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
