"""Images through the eager executor, and the checked numbers of a small Muse Glimmer."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from image_conformance import (
    CELLS,
    PATCH,
    ImageConformance,
    eager,
    encode,
    greedy,
    run,
)
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ExecutionError, InvalidInputError, ModelFileError
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.weights import Weights
from backends.base import Executor
from backends.registry import get_backend

__all__ = ["eager"]

CHUNKS = [48, 7, 1]
Logits = NDArray[np.float32]


def open_eager(path: Path, mmproj: Path | None = None) -> Executor:
    executor = get_backend("eager").open(path, LimitsConfig(mmproj=mmproj, threads=1))
    executor.allocate(CELLS)
    return executor


@pytest.fixture
def executor(eager: Executor) -> Executor:
    return eager


class TestEagerImages(ImageConformance):
    tower = 1e-4
    through_text = 1e-6
    consistency = 1e-5

    @pytest.fixture
    def executor(self, eager: Executor) -> Executor:
        return eager


def test_logits_of_the_dequantized_weights(executor: Executor) -> None:
    """The numbers come from a float16 cache, which costs the distance there is."""
    whole = run(executor, reference("input_ids"), 48)
    assert distance(whole, reference("q4_k_m_logits")) < 0.005
    for chunk in CHUNKS:
        logits = run(executor, reference("input_ids"), chunk)
        np.testing.assert_array_equal(logits.argmax(axis=1), whole.argmax(axis=1))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_logits_around_an_image(chunk: int) -> None:
    text = optional_model("tiny-muse/tiny-muse-bf16.gguf")
    with closing(open_eager(text, MMPROJ)) as executor:
        logits = run(executor, reference("input_ids"), chunk)
        assert distance(logits, reference("bf16_logits")) < 1e-4
        image = encode(executor, IMAGE.read_bytes())
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


def test_a_trained_model_says_what_it_said_elsewhere() -> None:
    folder = optional_model("tiny-muse-chat")
    mmproj = folder / "mmproj-tiny-muse-chat-bf16.gguf"
    chat = json.loads((folder / "chat.json").read_text())
    with closing(open_eager(folder / "tiny-muse-chat-bf16.gguf", mmproj)) as executor:
        for case in chat["cases"]:
            answer = greedy(executor, case["prompt_ids"], chat["stop_ids"], None)
            assert answer == case["greedy_ids"]
        for case in json.loads((folder / "images.json").read_text()):
            image = encode(executor, (folder / case["image"]).read_bytes())
            answer = greedy(executor, case["prompt_ids"], chat["stop_ids"], image)
            assert answer == case["greedy_ids"]


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
