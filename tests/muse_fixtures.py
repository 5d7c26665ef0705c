"""Small Muse Glimmer models with checked numbers.

`TINY` is a random one, in the repository. Larger files of the same kind are looked
for in the folder that ASTRAI_TEST_MODELS names, and tests that need one are skipped
without it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

TINY = Path(__file__).parent / "data" / "tiny-muse"
Q4_K_M = TINY / "tiny-muse-q4_k_m.gguf"
MMPROJ = TINY / "mmproj-tiny-muse-bf16.gguf"
DRAFT = TINY / "dflash-tiny-muse-bf16.gguf"
IMAGE = TINY / "image.png"

# Trained to follow the family's protocol; answers and prompts are those of two other programs.
CHAT = TINY.parent / "tiny-muse-chat"
CHAT_MODEL = CHAT / "tiny-muse-chat-q8_0.gguf"
CHAT_DRAFT = CHAT / "dflash-tiny-muse-chat-bf16.gguf"
CHAT_MMPROJ = CHAT / "mmproj-tiny-muse-chat-bf16.gguf"


def chat_cases() -> list[dict[str, Any]]:
    """Prompts as text and ids, and their greedy answers: prompt, prompt_ids, greedy_ids…

    smallest_margin: of the two best logits on the way. draft_target_steps, draft_accepted:
    with the whole blocks of CHAT_DRAFT, steps after the prompt's, and tokens accepted, but for
    a last one that ends the answer.
    """
    cases: list[dict[str, Any]] = json.loads((CHAT / "chat.json").read_text("utf-8"))["cases"]
    return cases


def image_cases() -> list[dict[str, Any]]:
    """Prompts around an image: image, before, after, prompt_ids, greedy_ids, greedy_text."""
    cases: list[dict[str, Any]] = json.loads((CHAT / "images.json").read_text("utf-8"))
    return cases


def reference(name: str) -> NDArray[np.generic]:
    """One array of the random model's numbers.

    input_ids [48]; q4_k_m_logits [48, vocabulary]: of the dequantized Q4_K_M weights;
    image_embeds [15, width]: of IMAGE; bf16_logits, and bf16_mm_logits of mm_input_ids
    [37]: of the weights before quantization.
    """
    with np.load(TINY / "reference.npz") as arrays:
        array: NDArray[np.generic] = arrays[name]
        return array


def optional_model(name: str) -> Path:
    """A file below the folder ASTRAI_TEST_MODELS; skips the test where it is not there."""
    path = Path(os.environ.get("ASTRAI_TEST_MODELS", "")) / name
    if "ASTRAI_TEST_MODELS" not in os.environ or not path.exists():
        pytest.skip(f"ASTRAI_TEST_MODELS has no {name}")
    return path


def distance(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """||actual - expected|| / ||expected|| over the whole arrays."""
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
