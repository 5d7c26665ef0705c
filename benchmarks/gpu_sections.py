"""The parts of gpu_check, each a function of what is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from gpu_peers import time_transformers, time_vllm
from torch import Tensor

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.spec import ModelSpec
from backends.base import ALL_TOKENS, Draw, ExecutorInfo, SequenceStep, Step
from backends.cuda import kernels
from backends.cuda.build import run_checks
from backends.cuda.checks import SPEC, random_decoder, random_matrix
from backends.cuda.device import choose_device, device_name
from backends.cuda.executor import CudaExecutor
from backends.cuda.matrices import PackedEmbedding, PackedLinear, PackedMatrix

PAGE_SIZE = 32
DECODED = (1, 8, 64)
# Logits whose two largest are nearer than this, in deviations of the row, may change places.
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """How large things are: on a GPU as they are in use, on a processor just there."""

    spec: ModelSpec
    dtype: torch.dtype
    context: int
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
LARGE = Size(_LARGE_SPEC, torch.bfloat16, 1024, (512, 4096), 20, 2**30, 8192, 64)
SMALL = Size(SPEC, torch.float32, 64, (64, 128), 2, 2**22, 256, 4)


class Subject:
    """The device, and the model that is timed on it."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device = device
        self.size = size

    @classmethod
    def on(cls, name: str) -> Subject:
        device = choose_device(name)
        return cls(device, LARGE if device.type == "cuda" else SMALL)

    def facts(self) -> dict[str, Any]:
        is_gpu = self.device.type == "cuda"
        return {
            "device": device_name(self.device),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": kernels.version() if kernels.available(self.device) else None,
            "memory_bytes": torch.cuda.get_device_properties(0).total_memory if is_gpu else None,
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

    @cached_property
    def decoder(self) -> Decoder:
        return random_decoder(self.device, self.size.dtype, self.size.spec)

    @property
    def bytes_per_cell(self) -> int:
        return self.size.spec.kv_values_per_token * self.size.dtype.itemsize

    def executor(self, decoder: Decoder, sizes: tuple[int, ...] = DECODED) -> CudaExecutor:
        spec = decoder.spec
        info = ExecutorInfo(
            spec=spec,
            backend="cuda",
            max_step_tokens=4096,
            max_context=spec.context_length,
            bytes_per_cell=self.bytes_per_cell,
            max_top_k=ALL_TOKENS,
        )
        dtype = decoder.token_embd(torch.zeros(1, dtype=torch.int64, device=self.device)).dtype
        return CudaExecutor(info, decoder, None, sizes, dtype)

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

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def limits_of(subject: Subject) -> dict[str, Any]:
    return {"bandwidth": subject.bandwidth, "matrix_rate": subject.matrix_rate}


def checks(subject: Subject) -> dict[str, Any]:
    """The backend's own checks; they need kernels."""
    if not kernels.available(subject.device):
        return {"skipped": "there are no kernels on this device"}
    return dict(run_checks(subject.device, subject.size.dtype, lambda what, done: None))


@torch.inference_mode()
def conformance(subject: Subject) -> dict[str, Any]:
    """A small 4-bit model beside others and alone, and against its weights in float32."""
    decoder = random_decoder(subject.device, subject.size.dtype, SPEC)
    reference = random_decoder(subject.device, torch.float32, SPEC)
    _copy_dequantized(decoder, reference)
    texts = [
        np.random.default_rng(n).integers(0, SPEC.vocab_size, length, dtype=np.int32)
        for n, length in enumerate((150, 77, 33, 8, 4, 90, 61, 12))
    ]
    with closing(subject.executor(decoder)) as executor:
        executor.allocate(len(texts) * SPEC.context_length)
        together, alone = _logits(executor, texts), [_logits(executor, [text]) for text in texts]
    exact = Subject(subject.device, replace(subject.size, dtype=torch.float32))
    with closing(exact.executor(reference)) as executor:
        executor.allocate(len(texts) * SPEC.context_length)
        expected = np.concatenate(_logits(executor, texts))
    rows, by_itself = np.concatenate(together), np.concatenate([each for [each] in alone])
    best = np.sort(by_itself, axis=1)[:, -2:]
    is_clear = best[:, 1] - best[:, 0] > MARGIN * by_itself.std(axis=1)
    is_equal = rows.argmax(axis=1) == by_itself.argmax(axis=1)
    result = {
        "error_against_float32": _distance(rows, expected),
        "error_against_alone": _distance(rows, by_itself),
        "equal_choices": float(is_equal.mean()),
        "clear_choices_that_differ": int((is_clear & ~is_equal).sum()),
    }
    if result["clear_choices_that_differ"] or result["error_against_float32"] > 0.1:
        raise ValueError(f"the model is wrong on this device: {result}")
    return result


def decode(subject: Subject) -> dict[str, Any]:
    """Steps of one token of each of some sequences, far into their contexts, and drawn."""
    context = subject.size.context
    steps = {n: _decode_step(n, context) for n in DECODED}
    seconds, without_graphs = (_time_steps(subject, steps, sizes) for sizes in (DECODED, ()))
    weights = sum(
        buffer.nbytes
        for name, buffer in subject.decoder.named_buffers()
        if not name.startswith("token_embd")
    )
    result: dict[str, Any] = {}
    for n in DECODED:
        n_bytes = weights + n * context * subject.bytes_per_cell
        result[str(n)] = {
            "tokens_per_second": n / seconds[n],
            "share_of_bandwidth": n_bytes / seconds[n] / subject.bandwidth,
            "gain_by_graphs": without_graphs[n] / seconds[n],
        }
    first, *_, last = (each["tokens_per_second"] for each in result.values())
    return {**result, f"{DECODED[-1]}_over_1": last / first}


def _time_steps(
    subject: Subject, steps: Mapping[int, Step], sizes: tuple[int, ...]
) -> dict[int, float]:
    with closing(subject.executor(subject.decoder, sizes)) as executor:
        executor.allocate(max(DECODED) * _padded(subject.size.context))
        return {n: subject.seconds(partial(executor.step, step)) for n, step in steps.items()}


def prefill(subject: Subject) -> dict[str, Any]:
    """Prompts that run alone, and as many as there are sequences, in one step."""
    spec, result = subject.size.spec, {}
    n_weights = spec.n_layers * (
        spec.width * spec.head_width * (2 * spec.n_heads + 2 * spec.n_kv_heads)
        + 3 * spec.width * spec.ffn_width
    )
    with closing(subject.executor(subject.decoder)) as executor:
        executor.allocate(max(subject.size.prompts) + max(DECODED) * PAGE_SIZE)
        for n_tokens in subject.size.prompts:
            for n in DECODED:
                step = _prefill_step(n, n_tokens // n)
                seconds = subject.seconds(partial(executor.step, step))
                result[f"{n_tokens} tokens in {n}"] = {
                    "tokens_per_second": step.n_tokens / seconds,
                    "share_of_matrix_rate": (
                        2 * n_weights * step.n_tokens / seconds / subject.matrix_rate
                    ),
                }
    return result


def products(subject: Subject) -> dict[str, Any]:
    """One matrix of the feed-forward by one row and by 64, in bytes of it a second."""
    spec, result = subject.size.spec, {}
    matrix = random_matrix((spec.ffn_width, spec.width), 4, subject.device)
    dense = matrix.dequantized(subject.size.dtype)
    for rows in (1, 64):
        x = torch.randn(rows, spec.width, device=subject.device).to(subject.size.dtype)
        ways: dict[str, Callable[[], Tensor]] = {"floats": lambda x=x: x @ dense.T}
        if kernels.can_multiply(x):
            ways["kernel"] = lambda x=x: kernels.multiply(
                x, matrix.weight, matrix.scales, matrix.biases, matrix.units
            )
        if subject.device.type == "cuda":
            ways["int4pack"] = _int4pack(matrix, x)
        for name, way in ways.items():
            n_bytes = dense.nbytes if name == "floats" else _bytes(matrix)
            share = n_bytes / subject.seconds(way) / subject.bandwidth
            result[f"{name}, {rows} rows"] = {"share_of_bandwidth": share}
    return result


def peers(subject: Subject) -> dict[str, Any]:
    """Tokens a second of one answer by others, of the same shape in bfloat16."""
    spec, answer = subject.size.spec, subject.size.answer
    # Theirs may need the memory.
    del subject.decoder
    return {
        "transformers": time_transformers(spec, subject.device, subject.size.dtype, answer),
        "vllm": time_vllm(spec, answer) if subject.device.type == "cuda" else None,
    }


SECTIONS: Mapping[str, Callable[[Subject], dict[str, Any]]] = {
    "limits": limits_of,
    "checks": checks,
    "conformance": conformance,
    "products": products,
    "decode": decode,
    "prefill": prefill,
    "peers": peers,
}


def _logits(executor: CudaExecutor, texts: list[Any]) -> list[Any]:
    """All rows of some texts: a part of each as a prompt, what is left a token at a time."""
    n_pages = SPEC.context_length // PAGE_SIZE
    pages = np.arange(len(texts) * n_pages, dtype=np.int32).reshape(len(texts), -1)
    done, rows = [0] * len(texts), [[] for _ in texts]
    while any(each < len(text) for each, text in zip(done, texts, strict=True)):
        running = [n for n, text in enumerate(texts) if done[n] < len(text)]
        counts = {n: 1 if done[n] else max(1, len(texts[n]) - 6) for n in running}
        step = Step(
            [
                SequenceStep(texts[n][done[n] : done[n] + counts[n]], done[n], pages[n], counts[n])
                for n in running
            ],
            PAGE_SIZE,
        )
        logits = executor.step(step).logits
        for n, part in zip(
            running, np.split(logits, np.cumsum([*counts.values()])[:-1]), strict=True
        ):
            rows[n].append(part.copy())
            done[n] += counts[n]
    return [np.concatenate(each) for each in rows]


def _copy_dequantized(packed: Decoder, reference: Decoder) -> None:
    """Give the reference the numbers that the packed decoder's weights stand for."""
    for name, module in packed.named_modules():
        parent, _, own = name.rpartition(".")
        if isinstance(module, PackedLinear | PackedEmbedding):
            weights = module.matrix.dequantized(torch.float32)
            linear = torch.nn.Linear(*weights.shape[::-1], bias=False, device=weights.device)
            linear.weight = torch.nn.Parameter(weights, requires_grad=False)
            reference.get_submodule(parent).add_module(own, linear)
    reference.token_embd.weight.copy_(packed.token_embd.weight)


def _decode_step(n: int, context: int) -> Step:
    n_pages = _padded(context) // PAGE_SIZE
    pages = np.arange(n * n_pages, dtype=np.int32).reshape(n, -1)
    token = np.ones(1, dtype=np.int32)
    draws = (Draw(0.0),)
    return Step([SequenceStep(token, context - 1, own, 1, draws=draws) for own in pages], PAGE_SIZE)


def _prefill_step(n: int, n_tokens: int) -> Step:
    n_pages = _padded(n_tokens) // PAGE_SIZE
    pages = np.arange(n * n_pages, dtype=np.int32).reshape(n, -1)
    tokens = np.ones(n_tokens, dtype=np.int32)
    return Step([SequenceStep(tokens, 0, own, 1, draws=(Draw(0.0),)) for own in pages], PAGE_SIZE)


def _padded(cells: int) -> int:
    return -(-cells // PAGE_SIZE) * PAGE_SIZE


def _int4pack(matrix: PackedMatrix, x: Tensor) -> Callable[[], Tensor]:
    """PyTorch's own product with 4-bit integers; its scales are rounded to bfloat16."""
    ahead = (matrix.weight & 15) << 4 | matrix.weight >> 4
    packed = torch._convert_weight_to_int4pack(ahead, 8)
    scales, biases = matrix.float_scales()
    both = torch.stack([scales, biases + 8 * scales], dim=-1).transpose(0, 1)
    rounded = both.contiguous().to(torch.bfloat16)
    return lambda: torch._weight_int4pack_mm(x, packed, 32, rounded)


def _bytes(matrix: PackedMatrix) -> int:
    parts = (matrix.weight, matrix.scales, matrix.biases, matrix.units)
    return sum(part.nbytes for part in parts if part is not None)


def _distance(actual: Any, expected: Any) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
