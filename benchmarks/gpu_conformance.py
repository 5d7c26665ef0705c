"""Whether a device computes rightly: the backend's checks, and a small model in three ways."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpu_steps import PAGE_SIZE
from gpu_subject import Subject

from astrai_cli.models.decoder import Decoder
from backends.base import SequenceStep, Step
from backends.cuda import kernels
from backends.cuda.build import run_checks
from backends.cuda.checks import SPEC, random_decoder
from backends.cuda.executor import CudaExecutor
from backends.cuda.matrices import PackedEmbedding, PackedLinear

# Logits whose two largest are nearer than this, in deviations of the row, may change places.
MARGIN = 0.05


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
    with closing(subject.executor(decoder, subject.size.decoded)) as executor:
        executor.allocate(len(texts) * SPEC.context_length)
        together, alone = _logits(executor, texts), [_logits(executor, [text]) for text in texts]
    exact = Subject(subject.device, replace(subject.size, dtype=torch.float32))
    with closing(exact.executor(reference, subject.size.decoded)) as executor:
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


def _distance(actual: Any, expected: Any) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
