"""Blocks of a draft of the model's shape: as graphs, and as they come."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import torch
from gpu_steps import decode_step, draft_step, padded
from gpu_subject import MAX_OWNERS, Subject

from backends.cuda.checks import random_draft
from backends.cuda.draft import PREPARED_OWNERS, CudaDraft

# Proposals of prepared blocks that may differ from those of others: near ties.
MOST_DIFFERENT = 0.1


@torch.inference_mode()
def drafts(subject: Subject) -> dict[str, Any]:
    """For the counts of owners that are prepared, and for one that is not."""
    size, result = subject.size, {}
    weights = random_draft(subject.device, size.dtype, size.draft)
    # One of the two is prepared for other blocks than it is asked for.
    ours, plain = (
        CudaDraft(weights, subject.decoder, n_tokens=n, max_owners=MAX_OWNERS) for n in (0, 1)
    )
    cells = MAX_OWNERS * padded(size.context)
    plain.allocate(cells, size.spec.context_length)
    counts = (*PREPARED_OWNERS, MAX_OWNERS)
    with closing(subject.executor(subject.decoder, counts, ours)) as executor:
        executor.allocate(cells)
        for kept in (
            *zip(ours.pool.keys, plain.pool.keys, strict=True),
            *zip(ours.pool.values, plain.pool.values, strict=True),
        ):
            kept[1].copy_(kept[0].normal_())
        for n in counts:
            step = draft_step(n, size.context, size.draft.max_block)
            equal = float((executor.draft(step) == plain.propose(step)).mean())
            seconds = subject.seconds(partial(executor.draft, step))
            decoding = subject.seconds(partial(executor.step, decode_step(n, size.context)))
            result[f"{n} owners"] = {
                "milliseconds": seconds * 1e3,
                "equal_proposals": equal,
                "gain_by_graphs": subject.of_gpu(
                    subject.seconds(partial(plain.propose, step)) / seconds
                ),
                "share_of_decode_step": subject.of_gpu(seconds / decoding),
            }
            if equal < 1 - MOST_DIFFERENT:
                raise ValueError(f"drafts in graphs propose something else: {result}")
    return result
