"""What every executor of a vision tower must do, on a small random Muse Glimmer.

A backend's test module subclasses `ImageConformance`, states its tolerances, and gives
the fixture `executor`: Q4_K_M with MMPROJ, CELLS cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, reference
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.image import prepare_image
from backends.base import EmbeddingSpan, Executor, SequenceStep, Step
from backends.registry import get_backend

PATCH = 1020
PAGE_SIZE = 512
CELLS = 4 * PAGE_SIZE
CELL = 28
Rows = NDArray[np.float32]


def encode(executor: Executor, data: bytes) -> Rows:
    info = executor.info
    assert info.vision is not None
    return executor.encode_image(prepare_image(data, info.vision, info.max_vision_patches).pixels)


def part(
    tokens: NDArray[np.int32], begin: int, end: int, page: int, image: Rows | None = None
) -> SequenceStep:
    """Tokens begin … end of a text in one page; `image` takes the places of its patch tokens."""
    spans: tuple[EmbeddingSpan, ...] = ()
    if image is not None:
        first = int((tokens == PATCH).argmax())
        low, high = max(first, begin), min(first + len(image), end)
        if low < high:
            spans = (EmbeddingSpan(low - begin, image[low - first : high - first]),)
    pages = np.array([page], dtype=np.int32)
    return SequenceStep(tokens[begin:end], begin, pages, end - begin, spans)


def run(executor: Executor, tokens: NDArray[Any], chunk: int, image: Rows | None = None) -> Rows:
    """Logits of all rows of a text that runs alone, some tokens a step."""
    tokens = tokens.astype(np.int32)
    steps = [
        part(tokens, begin, min(begin + chunk, len(tokens)), 0, image)
        for begin in range(0, len(tokens), chunk)
    ]
    return np.concatenate([executor.step(Step([step], PAGE_SIZE)).logits.copy() for step in steps])


def greedy(
    executor: Executor, tokens: list[int], stops: list[int], image: Rows | None
) -> list[int]:
    """At most 96 greedy tokens behind a prompt, the stop included."""
    logits = run(executor, np.array(tokens), len(tokens), image)
    chosen: list[int] = []
    while True:
        chosen.append(int(logits[-1].argmax()))
        if chosen[-1] in stops or len(chosen) == 96:
            return chosen
        start = len(tokens) + len(chosen) - 1
        one = np.array(chosen[-1:], dtype=np.int32)
        step = SequenceStep(one, start, np.arange(1, dtype=np.int32))
        logits = executor.step(Step([step], PAGE_SIZE)).logits


def random_image(rows: int, columns: int) -> NDArray[np.uint8]:
    """Pixels of rows × columns cells."""
    shape = (rows * CELL, columns * CELL, 3)
    return np.random.default_rng(rows * 100 + columns).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def eager() -> Iterator[Executor]:
    """The float32 reference of both models."""
    limits = LimitsConfig(mmproj=MMPROJ, threads=1)
    with closing(get_backend("eager").open(Q4_K_M, limits)) as opened:
        opened.allocate(CELLS)
        yield opened


class ImageConformance:
    """The suite. Errors are relative, over whole arrays (see `distance`)."""

    tower: ClassVar[float]
    """Of an image's embeddings against the float32 reference."""
    through_text: ClassVar[float]
    """Of the logits behind an image against the float32 reference."""
    consistency: ClassVar[float]
    """Of logits against those of the same text alone."""

    @pytest.fixture
    def executor(self) -> Executor:
        raise NotImplementedError("each backend's tests give this fixture")

    def test_embeddings_of_the_fixture(self, executor: Executor) -> None:
        assert (
            distance(encode(executor, IMAGE.read_bytes()), reference("image_embeds")) < self.tower
        )

    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 5), (7, 10)], ids=str)
    def test_images_of_any_shape(
        self, executor: Executor, eager: Executor, shape: tuple[int, int]
    ) -> None:
        """Less than a tile, many tiles, and more patches than are run at once."""
        pixels = random_image(*shape)
        rows = executor.encode_image(pixels)
        assert rows.dtype == np.float32
        assert rows.shape == (shape[0] * shape[1], 256)
        assert distance(rows, eager.encode_image(pixels)) < self.tower
        np.testing.assert_array_equal(executor.encode_image(pixels), rows)

    def test_logits_behind_an_image(self, executor: Executor, eager: Executor) -> None:
        tokens, data = reference("mm_input_ids"), IMAGE.read_bytes()
        expected = run(eager, tokens, len(tokens), encode(eager, data))
        logits = run(executor, tokens, len(tokens), encode(executor, data))
        assert distance(logits, expected) < self.through_text

    def test_an_image_in_chunks_and_beside_texts(self, executor: Executor) -> None:
        """The chunks' ends lie in the image, before it and behind it."""
        image = encode(executor, IMAGE.read_bytes())
        seen = reference("mm_input_ids").astype(np.int32)
        text = reference("input_ids").astype(np.int32)
        alone = run(executor, seen, len(seen), image), run(executor, text, len(text))
        for chunk in (7, 1):
            self._same(run(executor, seen, chunk, image), alone[0])
        found: tuple[list[Rows], list[Rows]] = ([], [])
        places = [(0, 0), (5, 20), (11, 21), (12, 40), (30, 41), (len(seen), len(text))]
        for (a, b), (c, d) in pairwise(places):
            step = Step([part(text, b, d, 3), part(seen, a, c, 1, image)], PAGE_SIZE)
            logits = executor.step(step).logits.copy()
            found[1].append(logits[: d - b])
            found[0].append(logits[d - b :])
        for parts, whole in zip(found, alone, strict=True):
            self._same(np.concatenate(parts), whole)

    def test_two_images_in_one_step(self, executor: Executor) -> None:
        tokens = reference("mm_input_ids").astype(np.int32)
        images = [encode(executor, IMAGE.read_bytes()), executor.encode_image(random_image(3, 5))]
        alone = [run(executor, tokens, len(tokens), image) for image in images]
        steps = [part(tokens, 0, len(tokens), page, image) for page, image in enumerate(images)]
        logits = executor.step(Step(steps, PAGE_SIZE)).logits
        for rows, whole in zip(np.split(logits, 2), alone, strict=True):
            self._same(rows, whole)

    def _same(self, logits: Rows, alone: Rows) -> None:
        assert distance(logits, alone) <= self.consistency

    @pytest.mark.parametrize(
        ("spans", "message"),
        [
            ([(0, np.zeros((1, 9), np.float32))], r"float32 \[1, 9\], must be float32 \[n, 256\]"),
            ([(0, np.zeros((1, 256)))], r"float64 \[1, 256\]"),
            ([(-1, np.zeros((1, 256), np.float32))], "at -1"),
            ([(0, np.zeros((0, 256), np.float32))], "0 embeddings at 0"),
            ([(9, np.zeros((2, 256), np.float32))], "up to 11 of its 10 tokens"),
            ([(0, np.zeros((2, 256), np.float32))] * 2, "2 embeddings at 0; .* from 2 on"),
        ],
    )
    def test_refuses_embeddings_that_do_not_fit(
        self, executor: Executor, spans: list[tuple[int, NDArray[Any]]], message: str
    ) -> None:
        embeddings = tuple(EmbeddingSpan(offset, rows) for offset, rows in spans)
        step = SequenceStep(np.zeros(10, np.int32), 0, np.arange(1, dtype=np.int32), 1, embeddings)
        with pytest.raises(InvalidInputError, match=message):
            executor.step(Step([step], PAGE_SIZE))

    @pytest.mark.parametrize(
        ("pixels", "message"),
        [
            (np.zeros((28, 28, 4), np.uint8), "must be uint8"),
            (np.zeros((28, 27, 3), np.uint8), "whole cells of 28"),
            (np.zeros((0, 28, 3), np.uint8), "whole cells of 28"),
            (np.zeros((28, 28, 3), np.float32), "float32"),
            (np.zeros((28, 28 * 1025, 3), np.uint8), "4100 patches, over the 4096"),
        ],
    )
    def test_refuses_images_that_do_not_fit(
        self, executor: Executor, pixels: NDArray[Any], message: str
    ) -> None:
        with pytest.raises(InvalidInputError, match=message):
            executor.encode_image(pixels)
