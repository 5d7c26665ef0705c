"""Triton's kernels against plain PyTorch: on a GPU, or by Triton's interpreter where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from astrai_cli.errors import BackendUnavailableError
from astrai_cli.models.decoder import Rotation
from backends.cuda import checks
from backends.cuda.build import run_checks
from backends.cuda.checks import FORMS, MOST_ERROR, random_decoder, random_matrix
from backends.cuda.decoder import DeviceBlock
from backends.cuda.matrices import PackedEmbedding, PackedLinear
from backends.registry import get_backend

CPU = torch.device("cpu")
_INTERPRET = """
import torch
from backends.cuda.checks import CHECKS
with torch.inference_mode():
    for check in CHECKS.values():
        assert check(torch.device("cpu"), torch.float32) < 1e-5, check
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compute_what_pytorch_does() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", _INTERPRET], check=True, env=environment)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_build_checks_the_gpu() -> None:
    report = get_backend("cuda").build(lambda what, done: None)
    assert report is not None
    assert report.is_file()


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_products_without_a_kernel(
    form: tuple[int, int, bool], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of the matrix, as those that are large are."""
    monkeypatch.setattr("backends.cuda.matrices._DENSE_WEIGHTS", 512 * 10)
    bits, group, nested = form
    matrix = random_matrix((96, 512), bits, CPU, group=group, nested=nested)
    x = torch.randn(rows, 512)
    weights = matrix.dequantized(torch.float32)
    torch.testing.assert_close(PackedLinear(matrix)(x), x @ weights.T, rtol=1e-4, atol=1e-4)
    tokens = torch.tensor([5, 0, 95], dtype=torch.int32)
    torch.testing.assert_close(PackedEmbedding(matrix, torch.float32)(tokens), weights[tokens])


def test_blocks_are_compiled_whole_and_once() -> None:
    """What a GPU's compiler is given has no gap, and serves all layers and sizes."""
    blocks = [block.block for block in random_decoder(CPU, torch.float32).blk]
    compiled = [DeviceBlock(block, compiled=False) for block in blocks]
    counters = []
    for part in ("_before", "_after"):
        counters.append(CompileCounterWithBackend("aot_eager"))
        function = torch.compile(
            getattr(compiled[0], part), dynamic=True, fullgraph=True, backend=counters[-1]
        )
        for block in compiled:
            setattr(block, part, function)

    @torch.inference_mode()
    def run(layers: list[DeviceBlock], n: int) -> torch.Tensor:
        h = torch.linspace(-1, 1, n * 256).view(n, 256)
        rotate = Rotation(torch.linspace(0, 3, n * 32).view(n, 32))
        for layer in layers:
            h = layer(h, torch.arange(n), rotate, lambda q, k, *rest: q * k[:, :1])
        return h

    plain = [DeviceBlock(block, compiled=False) for block in blocks]
    compilations = []
    for n in (1, 5, 9, 70):
        torch.testing.assert_close(run(compiled, n), run(plain, n), rtol=1e-4, atol=1e-5)
        compilations.append([counter.frame_count for counter in counters])
    assert compilations[1] == compilations[-1]


def test_checks_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def progress(what: str, done: float) -> None:
        told.append(what)

    results = {"good": MOST_ERROR / 2}
    monkeypatch.setattr(checks, "CHECKS", {"good": lambda *device: results["good"]})
    report = run_checks(CPU, torch.float32, progress)
    assert report["good"]["error"] == MOST_ERROR / 2
    assert told == ["compiling and checking good"]

    def fail(*device: Any) -> float:
        raise RuntimeError("no compiler")

    for check, message in (
        (lambda *device: float("nan"), "bad are wrong on this device: .* nan"),
        (fail, "bad cannot run: no compiler"),
    ):
        monkeypatch.setattr(checks, "CHECKS", {"bad": check})
        with pytest.raises(BackendUnavailableError, match=message):
            run_checks(CPU, torch.float32, progress)
