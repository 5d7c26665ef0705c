"""What n-gram drafts bring and cost: one answer at a time, with and without, in turn.

Tasks that repeat or edit a given text, a free one, and drafts that are always wrong.
Every answer must be the same with and without drafts.

    python benchmarks/speculation.py smollm2-135m --backend cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from preparation import note, prepare

from astrai_cli.benchmark.drafts import DraftBench
from astrai_cli.benchmark.replay import ReplayProposer
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.loading import RunnableModel, open_engine

TEXT = (Path(__file__).parent / "data" / "english.txt").read_text(encoding="utf-8")
CODE = Path(__file__).with_name("preparation.py").read_text(encoding="utf-8")
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
# The least gain of each, for the exit status.
TASKS = {
    "repeat a text": (CHAT.format(f"Repeat this text, word for word:\n\n{TEXT[:900]}"), 1.5),
    "edit a program": (
        CHAT.format(f"Add comments to this program and print all of it:\n\n{CODE}") + CODE[:64],
        1.5,
    ),
    "write freely": (CHAT.format("Tell me a story of a lighthouse keeper and a bottle."), 0.97),
}
ALWAYS_WRONG = 0.95


def gain(engine: InferenceEngine, prompt: Sequence[int], options: argparse.Namespace) -> float:
    """The median of the speeds with drafts to those of their neighbours without."""
    bench = DraftBench(engine, prompt, options.tokens)
    measured = bench.measure(1, warmup=1, repeats=options.repeats, replay=None)
    return measured.gain


def report(name: str, gain: float, least: float, engine: InferenceEngine) -> bool:
    stats = engine.get_stats()
    accepted = stats["tokens_accepted"] / max(1, stats["tokens_proposed"])
    print(
        f"{name:24}{gain:8.3f} (at least {least})   accepted {accepted:6.1%}, "
        f"{stats['accepted_length_mean']:.2f} a draft"
    )
    return gain >= least


def run(model: RunnableModel, options: argparse.Namespace) -> bool:
    limits = LimitsConfig(max_context=2048, threads=options.threads)
    good = True
    for name, (text, least) in TASKS.items():
        note(name)
        drafting = limits.model_copy(update={"speculate": "ngram"})
        with open_engine(model, drafting) as engine:
            prompt = engine.text.encode_prompt(text)
            good &= report(name, gain(engine, prompt, options), least, engine)
    note("always wrong")
    wrong = ReplayProposer({}, accuracy=0.0, max_tokens=LimitsConfig().ngram_n_draft)
    with open_engine(model, limits, proposer=wrong) as engine:
        prompt = engine.text.encode_prompt(TASKS["write freely"][0])
        answer = engine.generate(
            prompt, temperature=0.0, max_tokens=options.tokens, ignore_eos=True, drafts=False
        )
        wrong.answers = {tuple(prompt): answer.token_ids}
        good &= report("always wrong", gain(engine, prompt, options), ALWAYS_WRONG, engine)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="an alias, a GGUF file or an artifact folder")
    parser.add_argument("--backend", default="cpu", help="the backend that runs it")
    parser.add_argument("--threads", type=int, help="threads of the backend")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=9, help="pairs of runs of each task")
    options = parser.parse_args()
    sys.exit(0 if run(prepare(options.model, options.backend), options) else 1)


if __name__ == "__main__":
    main()
