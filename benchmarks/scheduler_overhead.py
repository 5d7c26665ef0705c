"""What scheduler and cache cost a step: the time from one step's end to the next one's start.

The executor computes nothing and the tasks draw nothing, so all that is left is
bookkeeping: choosing tokens, giving pages, publishing and matching them.

    python benchmarks/scheduler_overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache.sizing import make_cache
from astrai_cli.engine.prompts import PreparedPrompt
from astrai_cli.engine.request import Event, Finish
from astrai_cli.engine.scheduler import InferenceScheduler
from astrai_cli.engine.task import Task
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.spec import ModelSpec, RopeSpec
from backends.base import ExecutorInfo, Step, StepOutput

CONTEXT = 4096
SPEC = ModelSpec(
    architecture="none",
    name="none",
    n_layers=1,
    width=1,
    ffn_width=1,
    n_heads=1,
    n_kv_heads=1,
    head_width=1,
    vocab_size=2,
    context_length=CONTEXT,
    norm_eps=0.0,
    rope=RopeSpec(base=1.0, dimension=0),
    tied_head=True,
    qkv_bias=False,
    qk_norm=False,
    windows=(None,),
)


class IdleExecutor:
    """Notes when its steps begin; full ones of n_sequences count."""

    def __init__(self, n_sequences: int) -> None:
        self.info = ExecutorInfo(SPEC, "none", 512, CONTEXT, bytes_per_cell=0)
        self.gaps: list[float] = []
        self._n_sequences = n_sequences
        self._logits = np.zeros((512, 2), np.float32)
        self._ended: float | None = None

    def allocate(self, cells: int) -> None:
        """There is nothing to hold."""

    def step(self, step: Step) -> StepOutput:
        if self._ended and len(step.sequences) == self._n_sequences:
            self.gaps.append(time.perf_counter() - self._ended)
        n_rows = sum(sequence.logit_rows for sequence in step.sequences)
        output = StepOutput(self._logits[:n_rows])
        self._ended = time.perf_counter()
        return output

    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise InvalidInputError("there is no vision tower")

    def close(self) -> None:
        """There is nothing to free."""


class SilentTask(Task):
    """Goes on with the same token until it is as long as it may be."""

    @property
    def n_reusable(self) -> int:
        return self.n_known - 1

    def _logit_rows(self, n: int) -> int:
        return int(n == self.n_pending)

    def _accept(self, logits: NDArray[np.float32], drawn: Sequence[int]) -> None:
        self.append(0)
        if self.n_known == self.n_tokens_max:
            self.end("length")


def gaps(limits: LimitsConfig, n_sequences: int, n_prompt: int, n_answer: int) -> list[float]:
    """Seconds between the steps in which all sequences answer; half of a prompt is shared."""
    executor = IdleExecutor(n_sequences)
    cache = make_cache(limits, n_sequences, CONTEXT)
    scheduler = InferenceScheduler(executor, limits, cache)
    done = threading.Semaphore(0)

    def sink(event: Event) -> None:
        if isinstance(event, Finish):
            done.release()

    for number in range(n_sequences):
        prompt = [7] * (n_prompt // 2) + [number] * (n_prompt - n_prompt // 2)
        scheduler.submit(SilentTask(PreparedPrompt.of_ids(prompt), n_prompt + n_answer, sink))
    for _ in range(n_sequences):
        done.acquire()
    scheduler.shutdown(0)
    return executor.gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=16, help="answers at once")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=1000, help="tokens of each answer")
    options = parser.parse_args()
    print(f"{'milliseconds a step':28}{'median':>9}{'mean':>9}{'p99':>9}")
    for name, changes in (
        ("contiguous", {}),
        ("paged", {}),
        ("paged, pages of one", {"page_size": 1}),
    ):
        limits = LimitsConfig.model_validate(
            {"cache": name.split(",")[0], "max_decode_sequences": options.sequences, **changes}
        )
        taken = gaps(limits, options.sequences, options.prompt, options.answer)
        row = (
            statistics.median(taken),
            statistics.mean(taken),
            statistics.quantiles(taken, n=100)[98],
        )
        print(f"{name:28}" + "".join(f"{1000 * each:9.3f}" for each in row))


if __name__ == "__main__":
    main()
