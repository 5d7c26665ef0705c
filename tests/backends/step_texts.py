"""Texts that live in an executor's pages, and ways to run them in packed steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import VOCABULARY

from backends.base import Draw, Executor, LaunchingExecutor, SequenceStep, Step, drawn_token

Logits = NDArray[np.float32]

CELLS = 1024


@dataclass
class Text:
    """Tokens to run, the pages they live in, and how many have run."""

    tokens: NDArray[np.int32]
    pages: NDArray[np.int32]
    done: int = 0

    def take(self, count: int, logit_rows: int | None = None) -> SequenceStep:
        """The next `count` tokens; the logits of all of them, unless told otherwise."""
        start, self.done = self.done, self.done + count
        rows = count if logit_rows is None else logit_rows
        return SequenceStep(self.tokens[start : self.done], start, self.pages, rows)

    @property
    def left(self) -> int:
        return len(self.tokens) - self.done


def random_tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count, dtype=np.int32)


def texts(lengths: Sequence[int], page_size: int, *, shuffled: bool, seed: int = 0) -> list[Text]:
    """Random texts that share the CELLS cells out evenly."""
    pages = np.arange(CELLS // page_size, dtype=np.int32)
    if shuffled:
        np.random.default_rng(seed).shuffle(pages)
    each = len(pages) // len(lengths)
    return [
        Text(random_tokens(length, seed + index), pages[index * each : (index + 1) * each])
        for index, length in enumerate(lengths)
    ]


def chunks_of(size: int, total: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


def run(executor: Executor, page_size: int, *sequences: SequenceStep) -> list[Logits]:
    """The logits of one step, apart for each sequence."""
    output = executor.step(Step(sequences, page_size)).logits
    rows = [sequence.logit_rows for sequence in sequences]
    assert output.dtype == np.float32
    assert output.shape == (sum(rows), VOCABULARY)
    return np.split(output.copy(), np.cumsum(rows)[:-1])


def run_in_chunks(executor: Executor, page_size: int, text: Text, chunks: Sequence[int]) -> Logits:
    return np.concatenate([run(executor, page_size, text.take(chunk))[0] for chunk in chunks])


def run_together(
    executor: Executor, page_size: int, some: Sequence[Text], steps: Sequence[Sequence[int]]
) -> list[Logits]:
    """All logits of each text; a step lists how many tokens each text runs in it."""
    parts: list[list[Logits]] = [[] for _ in some]
    for counts in steps:
        running = [index for index, count in enumerate(counts) if count]
        sequences = [some[index].take(counts[index]) for index in running]
        for index, logits in zip(running, run(executor, page_size, *sequences), strict=True):
            parts[index].append(logits)
    return [np.concatenate(logits) for logits in parts]


def greedy(executor: Executor, page_size: int, prompts: Sequence[Text]) -> list[list[int]]:
    """12 greedy tokens after each prompt, all prompts in the same steps."""
    pending = [replace(prompt).take(prompt.left, logit_rows=1) for prompt in prompts]
    chosen: list[list[int]] = [[] for _ in prompts]
    for _ in range(12):
        for index, logits in enumerate(run(executor, page_size, *pending)):
            before = pending[index]
            token = logits.argmax(axis=-1).astype(np.int32)
            chosen[index].append(int(token[0]))
            pending[index] = replace(before, tokens=token, start=before.start + len(before.tokens))
    return chosen


def greedy_early(
    executor: LaunchingExecutor, page_size: int, prompts: Sequence[Text]
) -> list[list[int]]:
    """As `greedy`, each step launched before the last one's tokens are known.

    The first prompt of a step is the last of the next.
    """
    draws = (Draw(0.0),)
    latest = [replace(replace(p).take(p.left, logit_rows=1), draws=draws) for p in prompts]
    order = list(range(len(prompts)))
    chosen: list[list[int]] = [[] for _ in prompts]
    running = executor.launch(Step(latest, page_size))
    for left in reversed(range(12)):
        before, running_before = order, running
        if left:
            order = [*before[1:], before[0]]
            for number, index in enumerate(before):
                one = latest[index]
                token = np.array([drawn_token(number)], np.int32)
                latest[index] = replace(one, tokens=token, start=one.start + len(one.tokens))
            running = executor.launch(Step([latest[index] for index in order], page_size))
        for index, chosen_id in zip(before, running_before.result().tokens, strict=True):
            chosen[index].append(chosen_id)
    return chosen


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[Text], list[list[int]]]:
    """A page size, texts in pages of any order, and steps that run all of them."""
    page_size = draw(st.sampled_from([1, 4, 16, 256]))
    left = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    some = texts(left, page_size, shuffled=True, seed=draw(st.integers(0, 2**32 - 5)))
    steps = []
    while any(left):
        after = [draw(st.integers(0, count)) for count in left]
        if after != left:
            steps.append([before - now for before, now in zip(left, after, strict=True)])
        left = after
    return page_size, some, steps
