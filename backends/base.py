"""The Executor protocol: what a backend must do, and what the engine may rely on.

The engine keeps the books in integers (which page holds which position of which
sequence) and an executor keeps the keys and values. A step is *packed*: the
tokens of all scheduled sequences in one row, prefill chunks and decode tokens
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import InvalidInputError

if TYPE_CHECKING:
    from astrai_cli.models.draft_spec import DraftSpec
    from astrai_cli.models.spec import ModelSpec
    from astrai_cli.models.vision_spec import VisionSpec

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpan:
    """Rows that take the place of token embeddings, as `encode_image` gives them.

    offset: of the first row, counted from the step's first token. rows: float32
    [n, width], n >= 1. The tokens at those places count as positions and are not looked
    up, but must be in the vocabulary.
    """

    offset: int
    rows: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LogitChange:
    """Changes the logits of some tokens, each named once.

    ids: int64 [n]. A logit above 0 is divided by `penalty`, any other multiplied by it; then
    `bias`, float32 [n], is added.
    """

    ids: NDArray[np.int64]
    penalty: float
    bias: NDArray[np.float32]


ALL_TOKENS = 2**31 - 1
"""The top_k of a `Draw` from the whole vocabulary, however large."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How an executor draws a token from a row of logits, where it does so itself.

    By the order and the rules of `engine.sampling`: the changes, one after the other; then
    at temperature 0 the largest logit; otherwise temperature, top_k (1 … the executor's
    max_top_k), top_p, min_p, softmax, and the first token by id whose cumulative weight
    exceeds `uniform` times the total.
    """

    temperature: float
    top_k: int = 1
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0
    changes: tuple[LogitChange, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's share of a packed step.

    tokens: int32 [n], n >= 1, the ids to run, at positions start … start + n - 1; in a step
        that is launched behind another, also those of `drawn_token`.
    start: the position of the first of them; all earlier positions are in the cache.
    pages: int32 [at least ceil((start + n) / page_size)], distinct. Position p lives in
        cell pages[p // page_size] * page_size + p % page_size.
    logit_rows: how many of the last rows' logits are wanted, 0 … n.
    embeddings: in the order of their offsets, without overlap, inside the n tokens; none
        where the executor has no vision tower.
    draws: one for each of those rows, in whose place the tokens drawn are given; none where
        the logits are wanted, and where the executor has no max_top_k.
    """

    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    logit_rows: int = 1
    embeddings: tuple[EmbeddingSpan, ...] = ()
    draws: tuple[Draw, ...] = ()


def drawn_token(number: int) -> int:
    """The id that stands for what the step launched before draws by its draw of that number."""
    return -1 - number


@dataclass(frozen=True, slots=True)
class Step:
    """A packed step. Sequences may read the same pages; a page that one writes is its alone."""

    sequences: Sequence[SequenceStep]
    page_size: int

    @property
    def n_tokens(self) -> int:
        return sum(len(sequence.tokens) for sequence in self.sequences)

    @property
    def draws(self) -> list[Draw]:
        """Those of all sequences, in their order."""
        return [draw for sequence in self.sequences for draw in sequence.draws]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the sequences wanted, in their order.

    logits: float32 [sum of logit_rows, vocabulary], without those of draws. The array may be
    the executor's own buffer: it is valid until the next step. tokens: one id for each draw,
    below 0 where its logits hold NaN or have no finite maximum.
    """

    logits: NDArray[np.float32]
    tokens: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class CellBounds:
    """What a pool of cells of fixed size bears.

    max_cells: all there may be, one of them for padded writes. max_resident: the sequences,
    snapshots and capture slots together, each of which reserves a whole context.
    """

    max_cells: int
    max_resident: int


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an open executor is and the bounds of a step.

    vision: the tower behind `encode_image`, None where there is none; max_vision_patches:
    the most patches an image may have. max_top_k: of a `Draw`; 0 where the executor draws
    no tokens. changes_logits: whether a `Draw` may have changes. cell_bounds: None where
    memory is the only bound. draft: of a `drafting.DraftingExecutor`, else None;
    max_draft_owners: the most owners of its steps; draft_max_cells: of the cache, beside it.
    """

    spec: ModelSpec
    backend: str
    max_step_tokens: int
    max_context: int
    bytes_per_cell: int
    details: dict[str, Any] = field(default_factory=dict)
    vision: VisionSpec | None = None
    max_vision_patches: int = 0
    max_top_k: int = 0
    changes_logits: bool = False
    cell_bounds: CellBounds | None = None
    draft: DraftSpec | None = None
    max_draft_owners: int = 0
    draft_max_cells: int | None = None


@runtime_checkable
class Executor(Protocol):
    """Runs packed steps over cells it owns. Used by one thread at a time."""

    @property
    def info(self) -> ExecutorInfo: ...

    def allocate(self, cells: int) -> None:
        """Make room for `cells` cells of keys and values, dropping what was there.

        Raises InvalidInputError where the memory cannot be had.
        """

    def step(self, step: Step) -> StepOutput:
        """Run one packed step.

        Raises InvalidInputError for a step outside the bounds (before anything
        is written) and ExecutionError when the backend fails; in both cases the
        cells of earlier positions are as they were.
        """

    def encode_image(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings float32 [cells, width], in row order, of a prepared image.

        pixels: uint8 [height, width, 3], RGB, whole cells high and wide. Raises
        InvalidInputError for other shapes, for more than `max_vision_patches` and without
        a vision tower, and ExecutionError when the backend fails.
        """

    def close(self) -> None:
        """Free everything; calling it again does nothing."""


class RunningStep(Protocol):
    """A step that was launched."""

    def result(self) -> StepOutput:
        """Wait for it; to be asked for once, in the order of launches. Raises ExecutionError."""


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """An executor whose steps run while the host goes on; one whose max_top_k is above 0."""

    def launch(self, step: Step) -> RunningStep:
        """Begin a step; raises as `step` does, as far as it is known by then.

        One more may be launched before the result of the last one is asked for. It comes after
        it on the device, so it may read and write the same cells, and go on with its tokens.
        """


class Backend(Protocol):
    """One folder under `backends/` (or a third party's package): how to make and run artifacts.

    runs_model_files: `open` takes a GGUF file as it is, and there is nothing to export.
    own_options: those of `registry.OWN_OPTIONS` that it takes.
    """

    name: str
    runs_model_files: bool
    own_options: frozenset[str]

    def unavailable(self) -> str | None:
        """Why the backend cannot run here, with the command that mends it; None if it can."""

    def build(self, progress: Progress) -> Path | None:
        """Compile what the backend needs on this machine; the file made, None where nothing is."""

    def export(
        self, source: Path, target: Path, options: Any, progress: Progress
    ) -> Mapping[str, Any] | None:
        """Write an artifact's backend files into the existing folder `target`.

        `source` is a GGUF file or a Hugging Face folder, `options` the config model's
        export group. The vision tower that `models.source.open_vision` finds is exported
        too, or refused. What it returns goes into the manifest as `details` (JSON values),
        such as `methods`.
        """

    def open(self, source: Path, options: Any) -> Executor:
        """Open an artifact folder, or a GGUF file where the backend runs those.

        `options` is the config model's limits group.
        """


DEFAULT_CONTEXT = 4096


def context_limit(spec: ModelSpec, max_context: int | None) -> int:
    """Positions a sequence may use: `max_context` of the limits, or DEFAULT_CONTEXT at most.

    Raises InvalidInputError for a `max_context` beyond the model's.
    """
    if max_context is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    if max_context > spec.context_length:
        raise InvalidInputError(
            f"max_context is {max_context}, but the model's context is {spec.context_length}",
            param="max_context",
        )
    return max_context


# The bounds of an image where none is given: for an export, and for running.
EXPORTED_VISION_PATCHES = 16384
DEFAULT_VISION_PATCHES = 4096


def vision_patch_limit(
    max_vision_patches: int | None, default: int = DEFAULT_VISION_PATCHES
) -> int:
    """Patches an image may have by an option's `max_vision_patches`, in whole groups of four."""
    return (max_vision_patches or default) // 4 * 4


# The bounds of a step and of the cells that an export is for where none are given.
EXPORTED_STEP_TOKENS = 4096
EXPORTED_CELLS = 65536
