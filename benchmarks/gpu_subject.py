"""What gpu_check measures: a device, and a model of a size that fits it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.draft_spec import DraftSpec
from astrai_cli.models.spec import ModelSpec
from backends.base import ALL_TOKENS, ExecutorInfo
from backends.cuda import kernels
from backends.cuda.checks import DRAFT_SPEC, SPEC, random_decoder
from backends.cuda.device import choose_device, device_name
from backends.cuda.draft import CudaDraft
from backends.cuda.executor import CudaExecutor

MAX_OWNERS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How large things are: on a GPU as they are in use, on a processor just there."""

    spec: ModelSpec
    draft: DraftSpec
    dtype: torch.dtype
    context: int
    decoded: tuple[int, ...]
    prompts: tuple[int, ...]
    repeats: int
    buffer_bytes: int
    matrix_side: int
    answer: int


_LARGE_SPEC = replace(
    SPEC,
    name="8B",
    n_layers=36,
    width=4096,
    ffn_width=12288,
    n_heads=32,
    n_kv_heads=8,
    head_width=128,
    vocab_size=128256,
    context_length=8192,
    rope=replace(SPEC.rope, dimension=128),
    windows=(None,) * 36,
)
_LARGE_DRAFT = DraftSpec(
    layers=replace(
        _LARGE_SPEC, architecture="dflash", n_layers=5, qk_norm=True, windows=(None,) * 5
    ),
    taps=(1, 9, 17, 25, 33),
    max_block=16,
    mask_id=_LARGE_SPEC.vocab_size - 1,
)
LARGE = Size(
    spec=_LARGE_SPEC,
    draft=_LARGE_DRAFT,
    dtype=torch.bfloat16,
    context=1024,
    decoded=(1, 8, 64),
    prompts=(512, 4096),
    repeats=20,
    buffer_bytes=2**30,
    matrix_side=8192,
    answer=64,
)
SMALL = Size(
    spec=SPEC,
    draft=DRAFT_SPEC,
    dtype=torch.float32,
    context=128,
    decoded=(1, 8),
    prompts=(64, 128),
    repeats=2,
    buffer_bytes=2**22,
    matrix_side=256,
    answer=4,
)


class Subject:
    """The device, and the model that is timed on it."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device = device
        self.size = size
        self.is_gpu = device.type == "cuda"

    @classmethod
    def on(cls, name: str) -> Subject:
        device = choose_device(name)
        if device.type == "cpu":
            # More would wait for each other longer than such small work takes.
            torch.set_num_threads(1)
        return cls(device, LARGE if device.type == "cuda" else SMALL)

    def facts(self) -> dict[str, Any]:
        return {
            "dry_run": not self.is_gpu,
            "device": device_name(self.device),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": kernels.version() if kernels.available(self.device) else None,
            "memory_bytes": (
                torch.cuda.get_device_properties(0).total_memory if self.is_gpu else None
            ),
            "model": self.size.spec.name,
        }

    @cached_property
    def bandwidth(self) -> float:
        """Bytes a second, read and written by a copy."""
        source = torch.empty(self.size.buffer_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * self.size.buffer_bytes / self.seconds(lambda: target.copy_(source))

    @cached_property
    def matrix_rate(self) -> float:
        """Operations a second of one large product, two for each multiplied pair."""
        side = self.size.matrix_side
        matrix = torch.randn(side, side, device=self.device).to(self.size.dtype)
        return 2 * side**3 / self.seconds(lambda: matrix @ matrix)

    def of_gpu(self, value: float) -> float | None:
        """What says something of a GPU only: on a processor nothing."""
        return value if self.is_gpu else None

    @cached_property
    def decoder(self) -> Decoder:
        return random_decoder(self.device, self.size.dtype, self.size.spec)

    @property
    def bytes_per_cell(self) -> int:
        return self.size.spec.kv_values_per_token * self.size.dtype.itemsize

    def executor(
        self,
        decoder: Decoder,
        sizes: tuple[int, ...],
        draft: CudaDraft | None = None,
    ) -> CudaExecutor:
        spec = decoder.spec
        info = ExecutorInfo(
            spec=spec,
            backend="cuda",
            max_step_tokens=4096,
            max_context=spec.context_length,
            bytes_per_cell=self.bytes_per_cell,
            max_top_k=ALL_TOKENS,
            draft=None if draft is None else draft.spec,
            max_draft_owners=0 if draft is None else MAX_OWNERS,
        )
        dtype = decoder.token_embd(torch.zeros(1, dtype=torch.int64, device=self.device)).dtype
        return CudaExecutor(info, decoder, None, sizes, dtype, draft=draft)

    def seconds(self, work: Callable[[], object]) -> float:
        """The median of one run, after a few that do not count."""
        for _ in range(2):
            work()
        times = []
        for _ in range(self.size.repeats):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def queued_seconds(self, work: Callable[[], object]) -> float:
        """As a GPU takes for it where no host holds it up: in a graph."""
        if not self.is_gpu:
            return self.seconds(work)
        for _ in range(3):
            work()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return self.seconds(graph.replay)

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()
