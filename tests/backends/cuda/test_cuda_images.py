"""Images on the cuda backend in float32, on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from image_conformance import CELLS, ImageConformance, eager, encode, run
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference

from backends.base import Executor

__all__ = ["eager"]


@pytest.fixture(scope="module")
def opened(export: Any, open_cuda: Any) -> Iterator[Executor]:
    with closing(open_cuda(export(Q4_K_M, MMPROJ))) as executor:
        executor.allocate(CELLS)
        yield executor


class TestCudaImages(ImageConformance):
    tower = 1e-4
    through_text = 1e-4
    consistency = 1e-5

    @pytest.fixture
    def executor(self, opened: Executor) -> Executor:
        return opened


def test_logits_of_the_quantized_fixture(opened: Executor) -> None:
    """The numbers come from a float16 cache, which costs the distance there is."""
    logits = run(opened, reference("input_ids"), 48)
    assert distance(logits, reference("q4_k_m_logits")) < 0.005
    assert distance(encode(opened, IMAGE.read_bytes()), reference("image_embeds")) < 1e-4


@pytest.mark.parametrize("chunk", [48, 7, 1])
def test_logits_of_the_fixture_around_an_image(export: Any, open_cuda: Any, chunk: int) -> None:
    artifact = export(optional_model("tiny-muse/tiny-muse-bf16.gguf"), MMPROJ)
    with closing(open_cuda(artifact)) as executor:
        executor.allocate(CELLS)
        logits = run(executor, reference("input_ids"), chunk)
        assert distance(logits, reference("bf16_logits")) < 1e-4
        image = encode(executor, IMAGE.read_bytes())
        logits = run(executor, reference("mm_input_ids"), chunk, image)
        assert distance(logits, reference("bf16_mm_logits")) < 1e-4
