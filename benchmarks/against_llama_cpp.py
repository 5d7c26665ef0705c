"""astrai beside llama.cpp: speed, quality and memory on one machine, in one run, of one file.

Both sides run in processes of their own and take turns, so that what else happens on
the machine hits both; ratios are of neighbours in time. astrai's times include
scheduling and drawing tokens, llama.cpp's are those of `llama_decode` alone.

    python benchmarks/against_llama_cpp.py smollm2-135m --llama-python PATH

PATH is a Python with `llama-cpp-python`, built from source on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astrai_peer import start_astrai
from numpy.typing import NDArray
from peer import Peer
from preparation import note, prepare_beside_its_file
from worker_memory import WorkerMemory, measure_worker_memory

from astrai_cli.benchmark.quality import Quality, compare
from astrai_cli.benchmark.runs import REFERENCE_BACKEND
from astrai_cli.config import LimitsConfig
from astrai_cli.loading import RunnableModel, open_engine

FOLDER = Path(__file__).parent
PREFILL_TOKENS = 512
QUALITY_TOKENS = 2048
QUALITY_WINDOW = 512


@dataclass(frozen=True, slots=True)
class Work:
    """A prompt of `context` tokens, or `sequences` decoding together from such prompts on."""

    kind: str
    sequences: int
    context: int

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill of {self.context}"
        return f"decode of {self.sequences} at {self.context}"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Tokens a second of both sides, a pair a round."""

    work: Work
    astrai: tuple[float, ...]
    llama_cpp: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(self.astrai, self.llama_cpp, strict=True))


def work_list(options: argparse.Namespace) -> list[Work]:
    decodes = [
        Work("decode", batch, context) for context in options.contexts for batch in options.batches
    ]
    return [Work("prefill", 1, PREFILL_TOKENS), *decodes]


def measure_speed(astrai: Peer, llama_cpp: Peer, works: Sequence[Work], rounds: int) -> list[Pairs]:
    """One round that is not counted, then `rounds` of astrai and llama.cpp in turn."""
    results = []
    for work in works:
        runs: list[tuple[float, float]] = []
        for turn in range(rounds + 1):
            note(f"{work.name}, round {turn} of {rounds}")
            ours, theirs = (
                peer.ask(**asdict(work))["tokens_per_second"] for peer in (astrai, llama_cpp)
            )
            runs.append((ours, theirs))
        ours_all, theirs_all = zip(*runs[1:], strict=True)
        results.append(Pairs(work, ours_all, theirs_all))
    return results


def measure_quality(
    model: RunnableModel, file: Path, text: Path, llama_cpp: Peer
) -> dict[str, Quality]:
    """The distance of both sides to the float32 of the file, in windows of their own."""
    limits = LimitsConfig(max_context=QUALITY_WINDOW, max_decode_sequences=1)
    exact = limits.model_copy(update={"kv_dtype": "float32"})
    with (
        open_engine(RunnableModel(file, REFERENCE_BACKEND), exact) as reference,
        open_engine(model, limits) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        tokens = engine.text.encode_prompt(text.read_text(encoding="utf-8"))[:QUALITY_TOKENS]

        def score_with_llama_cpp(window: Sequence[int]) -> NDArray[np.float32]:
            saved = Path(folder) / "logits.npy"
            llama_cpp.ask(kind="score", tokens=list(window), file=str(saved))
            logits: NDArray[np.float32] = np.load(saved)
            return logits

        return {
            name: compare(
                reference.score,
                scorer,
                tokens,
                QUALITY_WINDOW,
                lambda done, name=name: note(f"quality of {name}, {done:.0%}"),  # type: ignore[misc]
            )
            for name, scorer in (("astrai", engine.score), ("llama.cpp", score_with_llama_cpp))
        }


def print_report(
    speed: list[Pairs], quality: dict[str, Quality], memory: WorkerMemory | None
) -> None:
    print(f"{'tokens a second, median (spread)':34}{'astrai':>18}{'llama.cpp':>18}{'ratio':>23}")
    for pairs in speed:
        low, high = min(pairs.ratios), max(pairs.ratios)
        print(
            f"{pairs.work.name:34}{_median(pairs.astrai):>18}{_median(pairs.llama_cpp):>18}"
            f"{statistics.median(pairs.ratios):9.2f} ({low:.2f} to {high:.2f})"
        )
    print(f"\n{'quality':34}{'KL, nats':>18}{'top-1 agreement':>18}{'perplexity':>23}")
    for name, each in quality.items():
        print(f"{name:34}{each.kl:18.5f}{each.top1_agreement:18.4f}{each.perplexity:23.3f}")
    if memory is not None:
        print(
            f"\npeak memory of the worker: {memory.peak / 1e6:.0f} MB, "
            f"{memory.without_cells / 1e6:.0f} MB of it beside keys and values"
        )


def _median(runs: Sequence[float]) -> str:
    median = statistics.median(runs)
    return f"{median:.0f} ({(max(runs) - min(runs)) / median:.0%})"


def as_json(
    speed: list[Pairs], quality: dict[str, Quality], memory: WorkerMemory | None, peer: Any
) -> str:
    report = {
        "llama_cpp": peer,
        "speed": [
            {
                **asdict(pairs),
                "ratios": pairs.ratios,
                "median_ratio": statistics.median(pairs.ratios),
            }
            for pairs in speed
        ],
        "quality": {name: asdict(each) for name, each in quality.items()},
        "worker_memory_bytes": memory
        and {"peak": memory.peak, "without_cells": memory.without_cells},
    }
    return json.dumps(report, indent=2)


def main() -> None:
    options = _options()
    model, file = prepare_beside_its_file(options.model)
    works = work_list(options)
    shared = {
        "threads": options.threads,
        "decode_tokens": options.decode_tokens,
        "context": max(PREFILL_TOKENS, *options.contexts) + options.decode_tokens + 64,
    }
    astrai = start_astrai(model, sequences=max(options.batches), **shared)
    llama_cpp = Peer(
        options.llama_python, FOLDER / "llama_cpp_peer.py", {**shared, "file": str(file)}
    )
    with astrai, llama_cpp:
        about = llama_cpp.ask(kind="about")
        speed = measure_speed(astrai, llama_cpp, works, options.rounds)
        quality = measure_quality(model, file, options.text, llama_cpp)
    memory = measure_worker_memory(model, 8, options.threads)
    note("")
    if options.json:
        print(as_json(speed, quality, memory, about))
    else:
        print_report(speed, quality, memory)


def _options() -> argparse.Namespace:
    def counts(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact of the cpu backend")
    parser.add_argument("--llama-python", required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side")
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each side")
    parser.add_argument("--batches", type=counts, default=[1, 8, 16], help="sequences together")
    parser.add_argument("--contexts", type=counts, default=[64, 512], help="tokens of the prompts")
    parser.add_argument("--decode-tokens", type=int, default=64, help="steps of a decoding run")
    parser.add_argument(
        "--text", type=Path, default=FOLDER / "data" / "english.txt", help="text for the quality"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
