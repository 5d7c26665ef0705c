"""How fast a device is by itself, and how near to that it comes with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import torch
from gpu_steps import PAGE_SIZE, decode_step, padded, prefill_step
from gpu_subject import Subject
from torch import Tensor

from backends.base import Step
from backends.cuda import kernels
from backends.cuda.checks import random_matrix
from backends.cuda.executor import CudaExecutor
from backends.cuda.matrices import PackedMatrix

# Matrices that are multiplied in turn, and steps that are run in a row.
_MATRICES, _AHEAD = 8, 8


def limits(subject: Subject) -> dict[str, Any]:
    return {
        "bandwidth": subject.of_gpu(subject.bandwidth),
        "matrix_rate": subject.of_gpu(subject.matrix_rate),
    }


def products(subject: Subject) -> dict[str, Any]:
    """Matrices of the feed-forward by one row and by 64, in bytes of them a second.

    There are so many that no cache holds them.
    """
    spec, result = subject.size.spec, {}
    matrices = [
        random_matrix((spec.ffn_width, spec.width), 4, subject.device) for _ in range(_MATRICES)
    ]
    dense = [matrix.dequantized(subject.size.dtype) for matrix in matrices]
    for rows in (1, 64):
        x = torch.randn(rows, spec.width, device=subject.device).to(subject.size.dtype)
        ways = {"floats": [partial(torch.matmul, x, each.T) for each in dense]}
        if kernels.can_multiply(x):
            ways["kernel"] = [
                partial(kernels.multiply, x, each.weight, each.scales, each.biases, each.units)
                for each in matrices
            ]
        if subject.is_gpu:
            ways["int4pack"] = [_int4pack(each, x) for each in matrices]
        for name, products_by_it in ways.items():
            n_bytes = dense[0].nbytes if name == "floats" else _bytes(matrices[0])
            seconds = subject.queued_seconds(partial(_run_all, products_by_it)) / _MATRICES
            share = n_bytes / seconds / subject.bandwidth
            result[f"{name}, {rows} rows"] = {"share_of_bandwidth": subject.of_gpu(share)}
    return result


def decode(subject: Subject) -> dict[str, Any]:
    """Steps of one token of each of some sequences, far into their contexts, and drawn.

    Each is launched before the one before it is read, as servers do.
    """
    context = subject.size.context
    steps = {n: decode_step(n, context) for n in subject.size.decoded}
    seconds, one_by_one = _time_steps(subject, steps, subject.size.decoded)
    without_graphs, _ = _time_steps(subject, steps, ())
    weights = sum(
        buffer.nbytes
        for name, buffer in subject.decoder.named_buffers()
        if not name.startswith("token_embd")
    )
    result: dict[str, Any] = {}
    for n in subject.size.decoded:
        n_bytes = weights + n * context * subject.bytes_per_cell
        result[str(n)] = {
            "tokens_per_second": n / seconds[n],
            "share_of_bandwidth": subject.of_gpu(n_bytes / seconds[n] / subject.bandwidth),
            "gain_by_launching_ahead": subject.of_gpu(one_by_one[n] / seconds[n]),
            "gain_by_graphs": subject.of_gpu(without_graphs[n] / seconds[n]),
        }
    first, *_, last = (each["tokens_per_second"] for each in result.values())
    return {**result, f"{subject.size.decoded[-1]}_over_1": subject.of_gpu(last / first)}


def _time_steps(
    subject: Subject, steps: Mapping[int, Step], sizes: tuple[int, ...]
) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of each step where the next is launched ahead, and where none is."""
    with closing(subject.executor(subject.decoder, sizes)) as executor:
        executor.allocate(max(subject.size.decoded) * padded(subject.size.context))
        ahead = {
            n: subject.seconds(partial(_run_ahead, executor, step)) / _AHEAD
            for n, step in steps.items()
        }
        alone = {n: subject.seconds(partial(executor.step, step)) for n, step in steps.items()}
    return ahead, alone


def _run_ahead(executor: CudaExecutor, step: Step) -> None:
    running = executor.launch(step)
    for _ in range(_AHEAD - 1):
        following = executor.launch(step)
        running.result()
        running = following
    running.result()


def prefill(subject: Subject) -> dict[str, Any]:
    """Prompts that run alone, and as many as there are sequences, in one step."""
    spec, result = subject.size.spec, {}
    n_weights = spec.n_layers * (
        spec.width * spec.head_width * (2 * spec.n_heads + 2 * spec.n_kv_heads)
        + 3 * spec.width * spec.ffn_width
    )
    with closing(subject.executor(subject.decoder, subject.size.decoded)) as executor:
        executor.allocate(max(subject.size.prompts) + max(subject.size.decoded) * PAGE_SIZE)
        for n_tokens in subject.size.prompts:
            for n in subject.size.decoded:
                step = prefill_step(n, n_tokens // n)
                seconds = subject.seconds(partial(executor.step, step))
                result[f"{n_tokens} tokens in {n}"] = {
                    "tokens_per_second": step.n_tokens / seconds,
                    "share_of_matrix_rate": subject.of_gpu(
                        2 * n_weights * step.n_tokens / seconds / subject.matrix_rate
                    ),
                }
    return result


def _run_all(works: Iterable[Callable[[], object]]) -> None:
    for work in works:
        work()


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
