"""Images through the eager executor, and the checked numbers of a small Muse Glimmer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ExecutionError, InvalidInputError, ModelFileError
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.image import prepare_image
from astrai_cli.models.weights import Weights
from backends.base import EmbeddingSpan, Executor, SequenceStep, Step, get_backend

PATCH = 1020
CHUNKS = [48, 7, 1]
Logits = NDArray[np.float32]


def open_eager(path: Path, mmproj: Path | None = None) -> Executor:
    executor = get_backend("eager").open(path, LimitsConfig(mmproj=mmproj, threads=1))
    executor.allocate(512)
    return executor


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with closing(open_eager(Q4_K_M, MMPROJ)) as opened:
        yield opened


def run(executor: Executor, tokens: Logits, chunk: int, image: Logits | None = None) -> Logits:
    """Logits of all rows; `image` takes the places of the patch tokens."""
    tokens = tokens.astype(np.int32)
    first = int((tokens == PATCH).argmax()) if image is not None else 0
    outputs = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        spans = ()
        if image is not None:
            begin, end = max(first, start), min(first + len(image), start + len(part))
            if begin < end:
                spans = (EmbeddingSpan(begin - start, image[begin - first : end - first]),)
        step = SequenceStep(part, start, np.arange(1, dtype=np.int32), len(part), spans)
        outputs.append(executor.step(Step([step], 512)).logits.copy())
    return np.concatenate(outputs)


def encode(executor: Executor, path: Path) -> Logits:
    assert executor.info.vision is not None
    image = prepare_image(path.read_bytes(), executor.info.vision, executor.info.max_vision_patches)
    return executor.encode_image(image.pixels)


def test_logits_of_the_dequantized_weights(executor: Executor) -> None:
    """The numbers come from a float16 cache, which costs the distance there is."""
    whole = run(executor, reference("input_ids"), 48)
    assert distance(whole, reference("q4_k_m_logits")) < 0.005
    for chunk in CHUNKS:
        logits = run(executor, reference("input_ids"), chunk)
        np.testing.assert_array_equal(logits.argmax(axis=1), whole.argmax(axis=1))


def test_embeddings_of_an_image(executor: Executor) -> None:
    assert distance(encode(executor, IMAGE), reference("image_embeds")) < 1e-4


@pytest.mark.parametrize("chunk", CHUNKS)
def test_logits_around_an_image(chunk: int) -> None:
    text = optional_model("tiny-muse/tiny-muse-bf16.gguf")
    with closing(open_eager(text, MMPROJ)) as executor:
        logits = run(executor, reference("input_ids"), chunk)
        assert distance(logits, reference("bf16_logits")) < 1e-4
        image = encode(executor, IMAGE)
        logits = run(executor, reference("mm_input_ids"), chunk, image)
        assert distance(logits, reference("bf16_mm_logits")) < 1e-4


def test_embeddings_take_the_place_of_tokens(executor: Executor) -> None:
    """Rows equal to those of other tokens give the logits of the other tokens."""
    tokens = reference("input_ids").astype(np.int32)
    with ModelFile.open(Q4_K_M) as model_file:
        rows = Weights(model_file).get_rows("token_embd.weight", tokens[3:40])
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + executor.info.spec.norm_eps)
    expected = run(executor, tokens, 48)
    hidden = tokens.copy()
    hidden[3:40] = PATCH
    for chunk in CHUNKS:
        logits = run(executor, hidden, chunk, rows)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def greedy(
    executor: Executor, tokens: list[int], stops: list[int], image: Logits | None
) -> list[int]:
    logits = run(executor, np.array(tokens), len(tokens), image)
    chosen: list[int] = []
    while True:
        chosen.append(int(logits[-1].argmax()))
        if chosen[-1] in stops or len(chosen) == 96:
            return chosen
        start = len(tokens) + len(chosen) - 1
        one = np.array(chosen[-1:], dtype=np.int32)
        step = SequenceStep(one, start, np.arange(1, dtype=np.int32))
        logits = executor.step(Step([step], 512)).logits


def test_a_trained_model_says_what_it_said_elsewhere() -> None:
    folder = optional_model("tiny-muse-chat")
    mmproj = folder / "mmproj-tiny-muse-chat-bf16.gguf"
    chat = json.loads((folder / "chat.json").read_text())
    with closing(open_eager(folder / "tiny-muse-chat-bf16.gguf", mmproj)) as executor:
        for case in chat["cases"]:
            answer = greedy(executor, case["prompt_ids"], chat["stop_ids"], None)
            assert answer == case["greedy_ids"]
        for case in json.loads((folder / "images.json").read_text()):
            image = encode(executor, folder / case["image"])
            answer = greedy(executor, case["prompt_ids"], chat["stop_ids"], image)
            assert answer == case["greedy_ids"]


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
    executor: Executor, spans: list[tuple[int, NDArray[np.generic]]], message: str
) -> None:
    embeddings = tuple(EmbeddingSpan(offset, rows) for offset, rows in spans)
    step = SequenceStep(np.zeros(10, np.int32), 0, np.arange(1, dtype=np.int32), 1, embeddings)
    with pytest.raises(InvalidInputError, match=message):
        executor.step(Step([step], 512))


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
    executor: Executor, pixels: NDArray[np.generic], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        executor.encode_image(pixels)


def test_without_a_tower_there_are_no_images() -> None:
    with closing(open_eager(Q4_K_M)) as executor:
        assert executor.info.vision is None
        with pytest.raises(InvalidInputError, match="without a vision tower"):
            executor.encode_image(np.zeros((28, 28, 3), np.uint8))
        with pytest.raises(InvalidInputError, match="there is no vision tower"):
            run(executor, np.full(4, PATCH), 4, np.zeros((4, 256), np.float32))


def test_a_tower_must_be_one() -> None:
    with pytest.raises(ModelFileError, match="'clip': a vision tower"):
        open_eager(Q4_K_M, Q4_K_M)


def test_a_closed_executor_encodes_nothing() -> None:
    executor = open_eager(Q4_K_M, MMPROJ)
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        executor.encode_image(np.zeros((28, 28, 3), np.uint8))
