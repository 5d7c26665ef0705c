"""Checks a step against an executor's bounds and lays its tokens in one row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.vision_spec import CHANNELS, VisionSpec
from backends.base import ExecutorInfo, SequenceStep, Step, drawn_token


@dataclass(frozen=True, slots=True)
class PackedStep:
    """The tokens of all sequences in one row, in the order of the sequences.

    tokens: int32 [T], below 0 those of `drawn_token`. positions: int64 [T], each in its own
    sequence. cells: int64 [T], where each token's key and value go. rows: int64 [R], the
    tokens whose logits are wanted. embedded: int64 [E], the places that `embeddings`,
    float32 [E, width], fill.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]
    cells: NDArray[np.int64]
    rows: NDArray[np.int64]
    embedded: NDArray[np.int64]
    embeddings: NDArray[np.float32]


def pack(step: Step, info: ExecutorInfo, cells: int, n_drawn: int = 0) -> PackedStep:
    """Pack a step for an executor that has `cells` cells allocated.

    n_drawn: tokens that the step launched before draws, and this one may go on with.
    Raises InvalidInputError, naming the bound, for a step that breaks any rule of
    `SequenceStep` and `Step` or a limit of `info`.
    """
    if not step.sequences:
        raise InvalidInputError("a step needs at least one sequence")
    if step.page_size < 1:
        raise InvalidInputError(f"page size {step.page_size} is below 1")
    for index, sequence in enumerate(step.sequences):
        _check_sequence(index, sequence, step.page_size, info)
        _check_embeddings(index, sequence, info)

    counts = np.array([len(sequence.tokens) for sequence in step.sequences])
    starts = np.array([sequence.start for sequence in step.sequences], dtype=np.int64)
    ends = np.cumsum(counts)
    if ends[-1] > info.max_step_tokens:
        raise InvalidInputError(
            f"a step of {ends[-1]} tokens is over the {info.max_step_tokens} this executor can run"
        )
    tokens = np.concatenate([sequence.tokens for sequence in step.sequences])
    _check_tokens(tokens, info.spec.vocab_size, n_drawn)

    seen = [_pages_seen(sequence, step.page_size) for sequence in step.sequences]
    _check_pages(step, seen, cells)

    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
    first_page = np.cumsum([0] + [len(pages) for pages in seen[:-1]])
    page_index = np.repeat(first_page, counts) + positions // step.page_size
    page = np.concatenate(seen)[page_index].astype(np.int64)
    wanted = np.array([sequence.logit_rows for sequence in step.sequences])
    skipped = np.repeat(ends - np.cumsum(wanted), wanted)
    spans = [
        (start + span.offset, span.rows)
        for start, sequence in zip(ends - counts, step.sequences, strict=True)
        for span in sequence.embeddings
    ]
    embedded = [np.arange(first, first + len(rows)) for first, rows in spans]
    return PackedStep(
        tokens=tokens,
        positions=positions,
        cells=page * step.page_size + positions % step.page_size,
        rows=np.arange(len(skipped)) + skipped,
        embedded=np.concatenate([np.zeros(0, dtype=np.int64), *embedded]),
        embeddings=np.concatenate(
            [np.zeros((0, info.spec.width), dtype=np.float32), *(rows for _, rows in spans)]
        ),
    )


def split_rows(step: Step) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the rows wanted, those that draws take and the others: int64 each."""
    is_drawn = np.repeat(
        [len(each.draws) > 0 for each in step.sequences],
        [each.logit_rows for each in step.sequences],
    )
    return np.flatnonzero(is_drawn), np.flatnonzero(~is_drawn)


def check_image(pixels: NDArray[np.uint8], info: ExecutorInfo) -> VisionSpec:
    """The tower's spec for an image it can encode; raises InvalidInputError for another."""
    spec = info.vision
    if spec is None:
        raise InvalidInputError("this model was opened without a vision tower")
    cell = spec.cell_size
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 3
        or pixels.shape[2] != CHANNELS
        or not all(size and size % cell == 0 for size in pixels.shape[:2])
    ):
        raise InvalidInputError(
            f"the image is {pixels.dtype} {list(pixels.shape)}, must be uint8 "
            f"[height, width, {CHANNELS}] in whole cells of {cell} pixels"
        )
    patches = pixels.shape[0] * pixels.shape[1] // spec.patch_size**2
    if patches > info.max_vision_patches:
        raise InvalidInputError(
            f"the image has {patches} patches, over the {info.max_vision_patches} allowed"
        )
    return spec


def _check_sequence(index: int, sequence: SequenceStep, page_size: int, info: ExecutorInfo) -> None:
    count = len(sequence.tokens)
    if count < 1:
        raise InvalidInputError(f"sequence {index} of the step has no tokens")
    if sequence.start < 0:
        raise InvalidInputError(f"sequence {index} starts at position {sequence.start}, below 0")
    end = sequence.start + count
    if end > info.max_context:
        raise InvalidInputError(
            f"sequence {index} would reach {end} positions, over the context of {info.max_context}"
        )
    if not 0 <= sequence.logit_rows <= count:
        raise InvalidInputError(
            f"sequence {index} wants {sequence.logit_rows} rows of logits of its {count} tokens"
        )
    if sequence.draws:
        _check_draws(index, sequence, info)
    needed = -(-end // page_size)
    if len(sequence.pages) < needed:
        raise InvalidInputError(
            f"sequence {index} has {len(sequence.pages)} pages of {page_size} for {end} positions; "
            f"it needs {needed}"
        )


def _check_draws(index: int, sequence: SequenceStep, info: ExecutorInfo) -> None:
    if len(sequence.draws) != sequence.logit_rows:
        raise InvalidInputError(
            f"sequence {index} has {len(sequence.draws)} draws for {sequence.logit_rows} rows"
        )
    top_k = max(draw.top_k for draw in sequence.draws)
    if top_k > info.max_top_k:
        raise InvalidInputError(
            f"sequence {index} draws with top_k {top_k}; it must be at most {info.max_top_k}"
        )
    if not info.changes_logits and any(draw.changes for draw in sequence.draws):
        raise InvalidInputError(f"sequence {index} changes logits, which this executor does not")


def _check_embeddings(index: int, sequence: SequenceStep, info: ExecutorInfo) -> None:
    if sequence.embeddings and info.vision is None:
        raise InvalidInputError(f"sequence {index} has embeddings, and there is no vision tower")
    width, end = info.spec.width, 0
    for span in sequence.embeddings:
        if span.rows.ndim != 2 or span.rows.shape[1] != width or span.rows.dtype != np.float32:
            raise InvalidInputError(
                f"sequence {index} has embeddings of {span.rows.dtype} {list(span.rows.shape)}, "
                f"must be float32 [n, {width}]"
            )
        if span.offset < end or len(span.rows) < 1:
            raise InvalidInputError(
                f"sequence {index} has {len(span.rows)} embeddings at {span.offset}; "
                f"they must be 1 or more from {end} on"
            )
        end = span.offset + len(span.rows)
        if end > len(sequence.tokens):
            raise InvalidInputError(
                f"sequence {index} has embeddings up to {end} of its {len(sequence.tokens)} tokens"
            )


def _check_tokens(tokens: NDArray[np.int32], vocab_size: int, n_drawn: int) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    is_low = low < drawn_token(n_drawn - 1)
    if is_low or high >= vocab_size:
        bad = low if is_low else high
        raise InvalidInputError(f"token id {bad} is outside the vocabulary of {vocab_size}")


def _check_pages(step: Step, seen: list[NDArray[np.int32]], cells: int) -> None:
    """Pages exist, and a page this step writes is seen once: by its writer."""
    every = np.concatenate(seen)
    n_pages = cells // step.page_size
    low, high = int(every.min()), int(every.max())
    if low < 0 or high >= n_pages:
        bad = low if low < 0 else high
        raise InvalidInputError(
            f"page {bad} of {step.page_size} is outside the {cells} cells allocated"
        )
    sightings = np.bincount(every, minlength=n_pages)
    if sightings.max() == 1:
        return
    written = np.concatenate(
        [
            pages[sequence.start // step.page_size :]
            for sequence, pages in zip(step.sequences, seen, strict=True)
        ]
    )
    shared = written[sightings[written] > 1]
    if len(shared):
        raise InvalidInputError(f"page {shared[0]} is written in this step and seen twice in it")
    for index, pages in enumerate(seen):
        if len(np.unique(pages)) < len(pages):
            raise InvalidInputError(f"sequence {index} has the same page twice")


def _pages_seen(sequence: SequenceStep, page_size: int) -> NDArray[np.int32]:
    end = sequence.start + len(sequence.tokens)
    return sequence.pages[: -(-end // page_size)]
