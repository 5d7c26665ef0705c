"""Images through the engine on a real, tiny model in float32."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference
from numpy.typing import NDArray
from PIL import Image

from astrai_cli import load
from astrai_cli.config import LimitsConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.image import prepare_image
from backends.base import EmbeddingSpan, SequenceStep, Step
from backends.registry import get_backend

PATCH = 1020
N_ROWS = 15
IN_TEXT = "<|image_start|><|patch|><|image_end|>"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def open_engine(text: Path = Q4_K_M, **limits: Any) -> InferenceEngine:
    return load(text, backend="eager", mmproj=MMPROJ, threads=1, **limits)


def prompt() -> list[int]:
    """The reference's, with one placeholder for all rows of the image."""
    ids = reference("mm_input_ids").tolist()
    first = ids.index(PATCH)
    return [*ids[: first + 1], *ids[first + N_ROWS :]]


def other_image() -> bytes:
    file = io.BytesIO()
    with Image.open(IMAGE) as image:
        image.convert("RGB").rotate(180).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with open_engine(max_context=256, page_size=4) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected() -> NDArray[np.float32]:
    """Logits of the reference's prompt in one step, without an engine."""
    limits = LimitsConfig(mmproj=MMPROJ, threads=1)
    with closing(get_backend("eager").open(Q4_K_M, limits)) as executor:
        executor.allocate(64)
        assert executor.info.vision is not None
        image = prepare_image(IMAGE.read_bytes(), executor.info.vision, 4096)
        ids = reference("mm_input_ids").astype(np.int32)
        span = EmbeddingSpan(ids.tolist().index(PATCH), executor.encode_image(image.pixels))
        pages = np.zeros(1, dtype=np.int32)
        step = SequenceStep(ids, 0, pages, len(ids), (span,))
        return executor.step(Step([step], 64)).logits.copy()


@pytest.mark.parametrize("chunk", [64, 7, 1])
def test_scores_are_those_of_the_executor(chunk: int, expected: NDArray[np.float32]) -> None:
    with open_engine(max_context=64, max_prefill_chunk=chunk) as engine:
        scores = engine.score(prompt(), images=[IMAGE])
        answer = engine.generate(prompt(), images=[IMAGE.read_bytes()], **GREEDY)
    assert distance(scores, expected) < 1e-5
    assert answer.token_ids[0] == expected[-1].argmax()


@pytest.mark.parametrize("chunk", [64, 7, 1])
def test_scores_are_the_reference_s(chunk: int) -> None:
    text = optional_model("tiny-muse/tiny-muse-bf16.gguf")
    with open_engine(text, max_context=64, max_prefill_chunk=chunk) as engine:
        assert distance(engine.score(prompt(), images=[IMAGE]), reference("bf16_mm_logits")) < 1e-4


def test_a_conversation_about_an_image_encodes_it_once(engine: InferenceEngine) -> None:
    before = engine.get_stats()["images_encoded"]
    ids = prompt()
    options = {"images": [IMAGE], "session_id": "s", **GREEDY}
    first = engine.generate(ids, **options)
    assert first.usage.prompt_tokens == len(ids) + N_ROWS - 1
    ids += [*first.token_ids, 5, 6, 7]
    second = engine.generate(ids, **options)
    assert second.usage.cached_tokens == second.usage.prompt_tokens - 4
    elsewhere = engine.generate(ids, images=[IMAGE], **GREEDY)
    assert elsewhere.usage.cached_tokens > N_ROWS
    assert elsewhere.token_ids == second.token_ids
    assert engine.get_stats()["images_encoded"] == before + 1


def test_eight_at_once_get_the_tokens_they_get_alone(engine: InferenceEngine) -> None:
    ids = prompt()
    requests = [
        engine.request([*ids, n], images=[image], **GREEDY)
        for n in (1, 2)
        for image in (IMAGE, other_image())
    ]
    requests += [engine.request([*ids[:5], n], **GREEDY) for n in range(4)]
    together = engine._complete(requests)
    alone = []
    for request in requests:
        with open_engine(max_context=128) as fresh:
            alone.append(fresh.generate_with_request(request))
    assert together == alone
    assert len({answer.token_ids for answer in together[:4]}) == 4


def test_a_trained_model_says_what_it_said_elsewhere() -> None:
    folder = optional_model("tiny-muse-chat")
    stops = json.loads((folder / "chat.json").read_text())["stop_ids"]
    cases = json.loads((folder / "images.json").read_text())
    text, mmproj = folder / "tiny-muse-chat-bf16.gguf", folder / "mmproj-tiny-muse-chat-bf16.gguf"
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 96, "stop_token_ids": stops}
    with load(text, backend="eager", mmproj=mmproj, threads=1, max_context=512) as engine:
        requests = [
            engine.request(
                f"{engine.text.bos_token}{case['before']}{IN_TEXT}{case['after']}",
                images=[folder / case["image"]],
                **options,
            )
            for case in cases
        ]
        answers = engine._complete(requests)
    for case, answer in zip(cases, answers, strict=True):
        assert answer.usage.prompt_tokens == len(case["prompt_ids"])
        assert list(answer.token_ids) == case["greedy_ids"]


def test_text_has_a_place_for_each_image(engine: InferenceEngine) -> None:
    text = f"What is this? {IN_TEXT}"
    answer = engine.generate(text, images=[IMAGE], **GREEDY)
    assert answer.usage.prompt_tokens == len(engine.text.encode_prompt(text)) + N_ROWS - 1
    for wrong, n in (("What is this?", 0), ("<|patch|><|patch|>", 2)):
        with pytest.raises(InvalidInputError, match=rf"<\|patch\|> {n} times for 1 images"):
            engine.generate(wrong, images=[IMAGE])
    with pytest.raises(InvalidInputError, match=r"missing\.png: cannot be read: No such"):
        engine.generate(text, images=[IMAGE.parent / "missing.png"])
