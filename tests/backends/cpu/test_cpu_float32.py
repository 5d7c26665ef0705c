"""Float32 programs: the file's own weights, and the numbers of the float32 reference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_numbers import DraftNumbers, Floats, OpenDrafting
from image_conformance import encode
from muse_fixtures import (
    CHAT_DRAFT,
    CHAT_MODEL,
    DRAFT,
    IMAGE,
    MMPROJ,
    distance,
    optional_model,
    reference,
)
from numpy.typing import NDArray

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.source import open_source
from backends.base import EmbeddingSpan, Executor, SequenceStep, Step
from backends.drafting import DraftStep
from backends.registry import get_backend

PAGE_SIZE = 16
OpenFloat32 = Callable[[Path, Path], Any]
open_limits = partial(LimitsConfig, dflash=True, kv_dtype="float32", threads=1)


@pytest.fixture(scope="module")
def open_float32(export: Any) -> OpenFloat32:
    """Opens a model with a draft, DRAFT's with a tower; exported once."""

    def open_(model: Path, draft: Path) -> Any:
        options = {"draft_gguf": draft, "activation_dtype": "float32"}
        mmproj = MMPROJ if draft == DRAFT else None
        return get_backend("cpu").open(export(model, mmproj, **options), open_limits())

    return open_


class TestCpuNumbers(DraftNumbers):
    head: Floats

    @pytest.fixture(scope="class")
    @classmethod
    def open_drafting(cls, open_float32: OpenFloat32) -> OpenDrafting:
        def open_(model: Path, draft: Path) -> Any:
            with open_source(model) as source:
                cls.head = source.weights.get("output.weight")
            return open_float32(model, draft)

        return open_

    def hidden_and_logits(self, executor: Any, step: DraftStep) -> tuple[Floats, Floats]:
        draft = executor._draft
        logits = draft._program.run(draft.rows(step))[0].copy()
        # The program gives no hidden rows; from a head with more rows than columns they follow.
        hidden, *_ = np.linalg.lstsq(self.head, logits.T, rcond=None)
        return hidden.T, logits


def logits_of(
    executor: Executor, ids: NDArray[np.generic], *embeddings: EmbeddingSpan
) -> NDArray[np.float32]:
    executor.allocate(8 * PAGE_SIZE)
    pages = np.array([4, 1, 7, 0, 2], np.int32)
    one = SequenceStep(ids.astype(np.int32), 0, pages, len(ids), embeddings)
    return executor.step(Step([one], PAGE_SIZE)).logits.copy()


def test_texts_are_the_eager_backend_s(open_float32: OpenFloat32) -> None:
    ids = reference("input_ids")
    with closing(get_backend("eager").open(CHAT_MODEL, LimitsConfig(threads=1))) as eager:
        expected = logits_of(eager, ids)
    with closing(open_float32(CHAT_MODEL, CHAT_DRAFT)) as executor:
        assert distance(logits_of(executor, ids), expected) < 1e-4


def test_texts_and_images_are_the_reference_s(open_float32: OpenFloat32) -> None:
    model = optional_model("tiny-muse/tiny-muse-bf16.gguf")
    with closing(open_float32(model, DRAFT)) as executor:
        rows = encode(executor, IMAGE.read_bytes())
        assert distance(rows, reference("image_embeds")) < 1e-4
        logits = logits_of(executor, reference("input_ids"))
        assert distance(logits, reference("bf16_logits")) < 1e-4
        logits = logits_of(executor, reference("mm_input_ids"), EmbeddingSpan(9, rows))
        assert distance(logits, reference("bf16_mm_logits")) < 1e-4


def test_a_row_is_the_same_whatever_else_is_in_the_step(open_float32: OpenFloat32) -> None:
    """Bit for bit, as with int8."""
    ids = reference("input_ids").astype(np.int32)
    with closing(open_float32(CHAT_MODEL, CHAT_DRAFT)) as executor:
        whole = logits_of(executor, ids)
        executor.allocate(8 * PAGE_SIZE)
        pages = np.arange(8, dtype=np.int32)
        parts = []
        for begin, end in ((0, 5), (5, 6), (6, 31), (31, 48)):
            n = end - begin
            one = SequenceStep(ids[begin:end], begin, pages[:4], n)
            other = SequenceStep(ids[: n + 3], 0, pages[4:])
            parts.append(executor.step(Step([other, one], PAGE_SIZE)).logits[1:].copy())
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_other_number_types_are_refused(export: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"activation_dtype.*bfloat16.*float32"):
        export(CHAT_MODEL, activation_dtype="bfloat16")
