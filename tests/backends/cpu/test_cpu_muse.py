"""The cpu artifact of a small Muse Glimmer against the logits of its dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from muse_fixtures import MMPROJ, Q4_K_M, distance, reference
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from backends.base import SequenceStep, Step
from backends.cpu.executor import CpuExecutor

# A random network amplifies what is rounded. The kernels of ggml, which keep the file's
# weights and round activations in blocks of 256, end 0.151 away.
FARTHEST = 0.13


def test_nearer_than_the_files_own_kernels(
    export: Callable[..., Path], native_library: Path
) -> None:
    artifact = Artifact.open(export(Q4_K_M, MMPROJ))
    tokens = reference("input_ids").astype(np.int32)
    pages = np.arange(1, dtype=np.int32)
    with closing(CpuExecutor(native_library, artifact, LimitsConfig())) as executor:
        executor.allocate(64)

        def logits(chunk: int) -> NDArray[np.float32]:
            starts = range(0, len(tokens), chunk)
            steps = [
                SequenceStep(tokens[i : i + chunk], i, pages, len(tokens[i : i + chunk]))
                for i in starts
            ]
            return np.concatenate([executor.step(Step([one], 64)).logits.copy() for one in steps])

        whole = logits(len(tokens))
        assert distance(whole, reference("q4_k_m_logits")) < FARTHEST
        for chunk in (7, 1):
            np.testing.assert_array_equal(logits(chunk).argmax(axis=1), whole.argmax(axis=1))
