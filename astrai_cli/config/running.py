"""The options of what runs a model: where it is, how it is exported, what it may use."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astrai_cli.config.base import (
    INT32_MAX,
    MAX_IMAGE_BYTES,
    Counts,
    Group,
    UserPath,
    default_cache_dir,
)
from astrai_cli.config.speculation import DraftBounds, DraftModel, Speculation


class ModelConfig(Group):
    """What runs the model, and where models are kept."""

    backend: str | None = Field(
        None, description="Backend to use; the best one for this machine when left out."
    )
    cache_dir: UserPath = Field(
        default_factory=default_cache_dir,
        description="Folder for pulled models and for artifacts exported on first use; "
        "$XDG_CACHE_HOME/astrai or ~/.cache/astrai when left out.",
    )


class _Bounds(Group):
    """The options that bound both what an export is built for and what serving runs."""

    max_prefill_chunk: int = Field(
        512,
        ge=1,
        le=4096,
        description="Most prompt tokens run in one step. An export is built for this many; "
        "serving may run fewer, never more than its artifact was built for.",
    )
    max_step_tokens: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Most tokens run in one step, prompts and answers together; as many as the "
        "artifact was built for when left out, never more. An export "
        "of the cuda backend is built for this many, 4096 when left out.",
    )
    max_cells: int | None = Field(
        None,
        ge=2,
        le=INT32_MAX,
        description="Cells of the cache, one of them left for padded writes; a whole context for "
        "every sequence, snapshot and capture slot when left out. An export of the cuda "
        "backend is built for this many, 65536 when left out, and serving never has more.",
    )


class _Vision(Group):
    """The options of images, at export and where a backend runs model files as they are."""

    mmproj: UserPath | None = Field(
        None,
        description="GGUF file of the model's vision tower, where the model has none of its own. "
        "An artifact has the tower it was exported with, and takes no other.",
    )
    max_vision_patches: int | None = Field(
        None,
        ge=4,
        le=INT32_MAX,
        description="Most patches of an image, in whole groups of four; larger images are scaled "
        "down. 16384 for an export and 4096 for serving when left out; serving never uses more "
        "than its artifact was built for.",
    )


class ExportConfig(_Bounds, _Vision, DraftModel, DraftBounds):
    """How a model file becomes an artifact."""

    activation_dtype: Literal["float16", "bfloat16", "float32"] | None = Field(
        None,
        description="Number type the mlx and cuda backends compute in and store keys and values "
        "in, float16 and bfloat16 when left out. The cpu backend makes int8 programs when left "
        "out, and with float32 ones whose weights are the file's own; it takes no other.",
    )
    forward_sizes: Counts = Field(
        (1, 2, 4, 8, 16, 32, 64),
        description="Counts of sequences for which the cuda backend prepares steps of one token "
        "each, as CUDA graphs; fewer are padded to the next count, more run as they come.",
    )
    logits: bool = Field(
        False,
        description="Give the engine logits to draw tokens from; the cuda backend draws them on "
        "the device otherwise.",
    )
    format: Literal["native", "pte"] = Field(
        "native",
        description="What to export: native, what the backend runs; pte, of the mlx backend "
        "a program for apps in its place, lowered with ExecuTorch's MLX partitioner.",
    )
    max_seq_len: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Ignored with a warning, for scripts that give it: an export always has the "
        "model's own context, and max_context bounds it when it runs.",
    )


class LimitsConfig(_Bounds, _Vision, DraftModel, Speculation):
    """What the engine may use at run time."""

    hf_tokenizer: UserPath | None = Field(
        None,
        description="Hugging Face folder or tokenizer.json of this model, to be used in the place "
        "of its own tokenizer; a folder's chat template takes the place of its own too.",
    )
    max_context: int | None = Field(
        None,
        gt=1,
        le=INT32_MAX,
        description="Positions one sequence may use, prompt and answer together; "
        "the smaller of the model's context and 4096 when left out, never more than the model's.",
    )
    max_decode_sequences: int = Field(
        8, ge=1, le=1024, description="Sequences that may run at once."
    )
    max_inflight_requests: int = Field(
        64,
        ge=1,
        le=INT32_MAX,
        description="Requests admitted at once, running and waiting; more are refused.",
    )
    max_queue: int | None = Field(
        None,
        ge=0,
        le=INT32_MAX,
        description="Requests admitted beyond those that may run at once; bounded by "
        "max_inflight_requests alone when left out.",
    )
    queue_timeout: float | None = Field(
        None,
        gt=0.0,
        le=86400.0,
        description="Seconds a request may wait to be started, then it is refused; "
        "without a bound when left out.",
    )
    max_sessions: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Sessions at once: the named ones, which stay, and one for each other request "
        "in flight; as many as max_inflight_requests when left out.",
    )
    evict_idle_sessions: bool = Field(
        False,
        description="When there are max_sessions, forget the named one that is idle for longest "
        "instead of refusing a new one.",
    )
    cache: Literal["contiguous", "paged"] = Field(
        "paged",
        description="How cells are given to sequences: a whole context each, or pages as they "
        "grow, with equal prefixes sharing theirs.",
    )
    page_size: int = Field(32, ge=1, le=4096, description="Cells of a page of the paged cache.")
    prefix_cache_entries: int = Field(
        0,
        ge=0,
        le=1024,
        description="Prompts whose pages stay in the paged cache for later requests, those used "
        "last; other pages stay until their room is needed.",
    )
    prefix_capture_slots: int = Field(
        0,
        ge=0,
        le=1024,
        description="Prompts that may be on their way to becoming such entries at once; "
        "0: as many as sequences may run, but at most two.",
    )
    max_image_bytes: int = Field(
        MAX_IMAGE_BYTES,
        ge=1,
        le=MAX_IMAGE_BYTES,
        description="Most bytes of an image as it comes, compressed. A request must have room for "
        "it in base64: max_request_bytes is at least 4/3 of this and 1024 more.",
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto",
        description="Where the cuda backend runs; auto is the GPU, or the processor where there "
        "is none, which is slow and meant for tests.",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads; all cores when left out."
    )
    kv_dtype: Literal["float16", "float32"] = Field(
        "float16", description="Number type the cache stores keys and values in."
    )


class SamplingConfig(Group):
    """Defaults of sampling for `chat` and the engine API."""

    temperature: float = Field(1.0, ge=0.0, le=10.0, description="0 picks the likeliest token.")
    top_k: int = Field(50, ge=0, le=INT32_MAX, description="Keep the k likeliest tokens; 0: all.")
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="Keep the likeliest tokens of this total probability."
    )
    min_p: float = Field(
        0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the likeliest's."
    )
    seed: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Makes sampling repeatable; random when left out."
    )
    max_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Most tokens to generate; the context when left out."
    )
