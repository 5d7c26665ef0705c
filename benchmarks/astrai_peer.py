"""astrai's side of a comparison: the engine in this process, as `astrai_cli.load` opens it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from peer import Answer, Peer, Question, answer_questions

from astrai_cli.benchmark.speed import SpeedBench
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.loading import RunnableModel, open_engine


def start_astrai(
    model: RunnableModel, *, sequences: int, context: int | None, decode_tokens: int, **limits: Any
) -> Peer:
    """A peer that answers {kind: "prefill" or "decode", sequences, context}."""
    settings = {"source": str(model.source), "backend": model.backend, **limits}
    settings |= {"sequences": sequences, "context": context, "decode_tokens": decode_tokens}
    return Peer(sys.executable, Path(__file__), settings)


def step_seconds(engine: InferenceEngine) -> float:
    """Seconds that all steps of the executor took so far."""
    stats = engine.get_stats()
    return float(stats["steps"] * stats["step_seconds_mean"])


def main() -> None:
    settings = json.loads(sys.argv[1])
    model = RunnableModel(Path(settings["source"]), settings["backend"])
    limits = LimitsConfig(
        threads=settings["threads"],
        max_context=settings["context"],
        max_decode_sequences=settings["sequences"],
    )
    with open_engine(model, limits) as engine:
        bench = SpeedBench(engine, settings["decode_tokens"])

        def work(question: Question) -> Answer:
            before = step_seconds(engine)
            if question["kind"] == "prefill":
                speed = bench.prefill(question["context"])
            else:
                speed = bench.decode(question["sequences"], question["context"])
            return {"tokens_per_second": speed, "step_seconds": step_seconds(engine) - before}

        answer_questions(work)


if __name__ == "__main__":
    main()
