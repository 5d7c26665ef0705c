"""The C++ attention by itself: against float64, and against itself bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference_decoder import relative_error
from table_attention import (
    CONTEXT,
    IDS,
    MAX_STEP,
    Heads,
    attended,
    table_artifact,
    write_table_attention,
)

from astrai_cli.config import LimitsConfig
from backends.base import SequenceStep, Step
from backends.cpu.executor import CpuExecutor

Rows = NDArray[np.float32]
Open = Callable[..., CpuExecutor]
"""open(heads, window=None, **limits) -> an executor with CELLS cells."""

CELLS = 4 * CONTEXT
TOLERANCE = 5e-6

HEADS = [
    Heads(8, 1),
    Heads(20, 7),
    Heads(64, 3),
    Heads(64, 1, n_kv_heads=1),
    Heads(96, 7, n_kv_heads=1),
    Heads(128, 32, n_kv_heads=1),
    Heads(256, 3),
]
WINDOWS = [None, 1, 5, 64, 100]
PLAIN = Heads(64, 3)


@pytest.fixture(scope="session")
def open_attention(native_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Open:
    folder = tmp_path_factory.mktemp("attention")

    @cache
    def program(heads: Heads) -> Path:
        path = folder / f"{heads.width}-{heads.group}-{heads.n_kv_heads}-{heads.sharpness}.pte"
        write_table_attention(path, heads)
        return path

    def open_executor(heads: Heads, window: int | None = None, **limits: object) -> CpuExecutor:
        artifact = table_artifact(program(heads), heads, window)
        executor = CpuExecutor(native_library, artifact, LimitsConfig.model_validate(limits))
        executor.allocate(CELLS)
        return executor

    return open_executor


def random_tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, IDS, count, dtype=np.int32)


def pages_of(count: int, page_size: int, seed: int = 0) -> list[NDArray[np.int32]]:
    """Pages of `count` sequences, each for CONTEXT positions, in a random order."""
    pages = np.random.default_rng(seed).permutation(CELLS // page_size).astype(np.int32)
    return np.split(pages[: count * (CONTEXT // page_size)], count)


def parts(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


def run_alone(
    executor: CpuExecutor, tokens: NDArray[np.int32], page_size: int, chunks: Sequence[int]
) -> Rows:
    [pages] = pages_of(1, page_size)
    outputs, start = [], 0
    for chunk in chunks:
        step = SequenceStep(tokens[start : start + chunk], start, pages, chunk)
        outputs.append(executor.step(Step([step], page_size)).logits.copy())
        start += chunk
    return np.concatenate(outputs)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads_of_any_shape(open_attention: Open, heads: Heads, kv_dtype: str) -> None:
    tokens = random_tokens(300)
    for window in (None, 100):
        with closing(open_attention(heads, window, kv_dtype=kv_dtype)) as executor:
            rows = run_alone(executor, tokens, 16, [200, *[1] * 10, 90])
        assert relative_error(rows, attended(heads, tokens, window, kv_dtype)) < TOLERANCE


@pytest.mark.parametrize("page_size", [1, 16, CONTEXT])
@pytest.mark.parametrize("window", WINDOWS)
def test_contexts_of_any_length(open_attention: Open, window: int | None, page_size: int) -> None:
    """Steps that end around the ends of blocks of 64 keys and chunks of 512."""
    tokens = random_tokens(1301)
    ends = [1, 2, 63, 64, 65, 127, 129, 511, 512, 513, 1023, 1024, 1025, 1300, 1301]
    with closing(open_attention(PLAIN, window)) as executor:
        rows = run_alone(executor, tokens, page_size, np.diff([0, *ends]).tolist())
    assert relative_error(rows, reference(1301, window)) < TOLERANCE


@cache
def reference(length: int, window: int | None) -> NDArray[np.float64]:
    return attended(PLAIN, random_tokens(length), window, "float16")


@pytest.mark.parametrize("sharpness", [0.0, 20.0, 100.0])
def test_scores_far_apart(open_attention: Open, sharpness: float) -> None:
    """All keys alike, or differences of scores beyond what exp can tell from 0."""
    heads = Heads(64, 3, sharpness=sharpness)
    tokens = random_tokens(600)
    with closing(open_attention(heads)) as executor:
        rows = run_alone(executor, tokens, 16, [400, 200])
    # Scores have the relative precision of float32, and exp makes that an absolute one.
    tolerance = TOLERANCE * max(1.0, 10 * sharpness)
    assert relative_error(rows, attended(heads, tokens, None, "float16")) < tolerance


def test_only_the_first_cells_of_a_sequence_are_read(open_attention: Open) -> None:
    """What lies in other cells, stale or of another sequence, never counts."""
    with closing(open_attention(PLAIN)) as executor:
        first, second = pages_of(2, 16)
        crowd = SequenceStep(random_tokens(MAX_STEP, seed=1), 0, first, 1)
        executor.step(Step([crowd], 16))
        tokens = random_tokens(70)
        step = SequenceStep(tokens, 0, np.concatenate([first[3:], second]), 70)
        rows = executor.step(Step([step], 16)).logits
        assert relative_error(rows, reference(70, None)) < TOLERANCE


@dataclass(frozen=True)
class Share:
    """A sequence of `length` tokens that joins at step `joins` and runs `chunks` in turn."""

    length: int
    joins: int
    chunks: tuple[int, ...]


shares = st.lists(
    st.builds(
        Share,
        length=st.integers(1, 70) | st.integers(71, 700),
        joins=st.integers(0, 3),
        chunks=st.tuples(st.integers(1, 4), st.integers(1, 300), st.integers(1, 70)),
    ),
    min_size=1,
    max_size=4,
)


def steps_of(some: Sequence[Share]) -> Iterator[list[int]]:
    """How many tokens of each sequence each step runs."""
    left = [share.length for share in some]
    for number in count():
        if not any(left):
            return
        room, counts = MAX_STEP, []
        for index, share in enumerate(some):
            turn = number - share.joins
            wanted = share.chunks[turn % len(share.chunks)] if turn >= 0 else 0
            counts.append(min(left[index], room, wanted))
            room -= counts[-1]
            left[index] -= counts[-1]
        if any(counts):
            yield counts


def run_packed(
    executor: CpuExecutor,
    texts: Sequence[NDArray[np.int32]],
    page_size: int,
    steps: Iterable[Sequence[int]],
) -> list[Rows]:
    pages = pages_of(len(texts), page_size, seed=1)
    done, outputs = [0] * len(texts), [list[Rows]() for _ in texts]
    for counts in steps:
        running = [index for index, count in enumerate(counts) if count]
        sequences = []
        for index in running:
            begin, done[index] = done[index], done[index] + counts[index]
            tokens = texts[index][begin : done[index]]
            sequences.append(SequenceStep(tokens, begin, pages[index], len(tokens)))
        logits = executor.step(Step(sequences, page_size)).logits.copy()
        ends = np.cumsum([len(sequence.tokens) for sequence in sequences])[:-1]
        for index, rows in zip(running, np.split(logits, ends), strict=True):
            outputs[index].append(rows)
    return [np.concatenate(rows) for rows in outputs]


@pytest.fixture(scope="module")
def alone(open_attention: Open) -> Callable[..., Rows]:
    """Rows of a text run alone, a token a step, on one thread."""

    @cache
    def rows(heads: Heads, window: int | None, length: int, seed: int) -> Rows:
        with closing(open_attention(heads, window, threads=1)) as executor:
            return run_alone(executor, random_tokens(length, seed), 1, [1] * length)

    return rows


class TestBitForBit:
    """A row's result depends on its own sequence alone, whatever runs beside it."""

    @pytest.fixture(params=[1, 2])
    def threads(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)

    @pytest.fixture(params=HEADS, ids=str)
    def heads(self, request: pytest.FixtureRequest) -> Heads:
        return request.param

    @pytest.mark.parametrize("window", [None, 100])
    def test_packed_in_any_way(
        self,
        open_attention: Open,
        alone: Callable[..., Rows],
        heads: Heads,
        window: int | None,
        threads: int,
    ) -> None:
        expected = [alone(heads, window, 700, seed) for seed in range(4)]
        with closing(open_attention(heads, window, threads=threads)) as executor:
            assert executor.info.details["threads"] == threads

            @settings(max_examples=8, deadline=None)
            @given(shares, st.sampled_from([1, 16, CONTEXT]))
            def check(some: list[Share], page_size: int) -> None:
                texts = [random_tokens(700, seed)[: s.length] for seed, s in enumerate(some)]
                outputs = run_packed(executor, texts, page_size, steps_of(some))
                for rows, single in zip(outputs, expected, strict=False):
                    np.testing.assert_array_equal(rows, single[: len(rows)])

            check()

    def test_long_contexts(self, open_attention: Open, threads: int) -> None:
        """Decoding splits the keys between threads, prefill the queries."""
        tokens = random_tokens(1400)
        with closing(open_attention(PLAIN, threads=threads)) as executor:
            in_chunks = run_alone(executor, tokens, 16, parts(1400, 500))
            decoded = run_alone(executor, tokens, 1, [500, 480, *[1] * 420])
        np.testing.assert_array_equal(in_chunks, decoded)
