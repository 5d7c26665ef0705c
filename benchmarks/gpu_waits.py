"""How often the host waits for the device, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import torch
from gpu_steps import decode_step, draft_step, padded, prefill_step
from gpu_subject import MAX_OWNERS, Subject
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from backends.cuda.checks import DRAFT_SPEC, SPEC, random_decoder, random_draft
from backends.cuda.draft import CudaDraft

WAITS = {
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpy2D",
    "cudaStreamSynchronize",
}
_COPY = "Memcpy DtoH"
_STEP = "astrai step"
_WARM_UPS, _STEPS = 3, 10


def count_waits(work: Callable[[], object], times: int = _STEPS) -> dict[str, float]:
    """Waits and copies to the host of one run, on average of some after the first.

    host_waits: calls that return when the device has done what was asked of it.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    for _ in range(_WARM_UPS):
        work()
    with profile(activities=activities) as profiler:
        for _ in range(times):
            with record_function(_STEP):
                work()
    events = [*profiler.events()]
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    # The profiler waits for the device as well, when it ends.
    steps = [event.time_range for event in on_host if event.name == _STEP]
    waits = sum(
        event.name in WAITS
        and any(step.start <= event.time_range.start <= step.end for step in steps)
        for event in on_host
    )
    copies = sum(event.name.startswith(_COPY) for event in events)
    return {"host_waits": waits / len(steps), "copies_to_host": copies / len(steps)}


def waits(subject: Subject) -> dict[str, Any]:
    """Of steps of every kind of a small model, and of its drafts: one each."""
    decoder = random_decoder(subject.device, subject.size.dtype, SPEC)
    weights = random_draft(subject.device, subject.size.dtype, DRAFT_SPEC)
    draft = CudaDraft(weights, decoder, n_tokens=0, max_owners=MAX_OWNERS)
    context, decoded = SPEC.context_length // 2, subject.size.decoded
    with closing(subject.executor(decoder, decoded, draft)) as executor:
        executor.allocate(max(MAX_OWNERS, *decoded) * padded(context))
        steps = {
            **{f"decode of {n}": decode_step(n, context) for n in decoded},
            "prefill": prefill_step(2, context),
        }
        blocks = {
            f"draft of {n}": draft_step(n, context, DRAFT_SPEC.max_block) for n in (1, MAX_OWNERS)
        }
        counted = {
            **{kind: count_waits(partial(executor.step, step)) for kind, step in steps.items()},
            **{kind: count_waits(partial(executor.draft, step)) for kind, step in blocks.items()},
        }
    if not subject.is_gpu:
        return {kind: dict.fromkeys(found) for kind, found in counted.items()}
    wrong = {kind: found for kind, found in counted.items() if set(found.values()) != {1.0}}
    if wrong:
        raise ValueError(f"a step must wait once and copy once to the host, and not: {wrong}")
    return counted
