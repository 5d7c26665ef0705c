"""The hashing executor with a tower, and a text model with a token for images.

Its embeddings are numbers that no other row of any image has; they go into the cells,
and so into the hash, as the tokens in whose places they are would.
"""

from __future__ import annotations

import dataclasses
import io
import threading
import zlib
from collections.abc import Callable

import numpy as np
from byte_tokenizer import VOCABULARY, byte_text, byte_tokenizer
from numpy.typing import NDArray
from numpy_executor import NumpyExecutor, hash_logits
from PIL import Image
from tokenizers import AddedToken

from astrai_cli.engine.request import GenerationRequest
from astrai_cli.engine.sampling import SamplingPipeline
from astrai_cli.models.image import prepare_image
from astrai_cli.models.text import TextModel
from astrai_cli.models.vision_spec import VisionSpec
from backends.base import SequenceStep, Step, StepOutput

PATCH = VOCABULARY
MAX_PATCHES = 256
TOWER = VisionSpec(
    n_layers=1,
    width=4,
    ffn_width=1,
    n_heads=1,
    patch_size=1,
    merge=2,
    grid_side=1,
    projector_width=1,
    text_width=1,
    norm_eps=0.0,
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
)


def seeing_text() -> TextModel:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<|patch|>", special=True)])
    return dataclasses.replace(byte_text(), tokenizer=tokenizer)


def png(width: int, height: int, seed: int) -> bytes:
    """An image of random pixels, of a row of embeddings for every 2 x 2 of them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def embed(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Numbers below 0, exact in float32: a digest of the image, and which row it is."""
    n_rows = pixels.shape[0] * pixels.shape[1] // 4
    first = zlib.crc32(pixels.tobytes()) % 2**15 * 2**8
    return -np.arange(first + 1, first + n_rows + 1, dtype=np.float32)[:, None]


def sees(request: GenerationRequest) -> list[int]:
    """What a prompt is to the executor: its tokens, and the numbers of its image's rows."""
    seen = list(request.prompt)
    for image in request.images:
        rows = embed(prepare_image(image.data, TOWER, MAX_PATCHES).pixels)
        seen[image.position : image.position + 1] = rows[:, 0].astype(int).tolist()
    return seen


def alone_with_images(request: GenerationRequest) -> tuple[int, ...]:
    """What a request must give, computed from nothing but its own history."""
    pipeline = SamplingPipeline.from_params(request.sampling, 0, request.prompt)
    history = sees(request)
    n_prompt = len(history)
    assert request.max_tokens is not None
    for index in range(request.max_tokens):
        history.append(pipeline.sample(hash_logits(np.array(history), VOCABULARY + 1), index))
    return tuple(history[n_prompt:])


class SeeingExecutor(NumpyExecutor):
    """`before_encoding` may raise, or wait. n_encoded: images so far."""

    def __init__(self, max_context: int = 64, max_step_tokens: int = 32) -> None:
        super().__init__(VOCABULARY + 1, max_context, max_step_tokens)
        self.info = dataclasses.replace(self.info, vision=TOWER, max_vision_patches=MAX_PATCHES)
        self.before_encoding: Callable[[], None] = lambda: None
        self.n_encoded = 0
        self.threads: set[str] = set()

    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.threads.add(threading.current_thread().name)
        self.before_encoding()
        self.n_encoded += 1
        return embed(pixels)

    def step(self, step: Step) -> StepOutput:
        return super().step(Step([_with_rows(one) for one in step.sequences], step.page_size))


def _with_rows(one: SequenceStep) -> SequenceStep:
    tokens = one.tokens.astype(np.int64)
    for span in one.embeddings:
        places = slice(span.offset, span.offset + len(span.rows))
        assert (tokens[places] == PATCH).all()
        tokens[places] = span.rows[:, 0]
    return dataclasses.replace(one, tokens=tokens, embeddings=())
