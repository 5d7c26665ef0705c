"""The config model: the one definition of every option, with its default, bounds and help.

An option's name is the same everywhere: `max_context` here and in `astrai.toml`,
`ASTRAI_MAX_CONTEXT` in the environment, `--max-context` on the command line.
A name that stands in two groups is one option: both inherit its one definition.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

INT32_MAX = 2**31 - 1
MAX_REQUEST_BYTES = 32 * 2**20
MAX_IMAGE_BYTES = 20 * 2**20
MAX_CHOICES = 128
ToolParserName = Literal["none", "atem", "hermes"]


def _user_dir(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "astrai"


def default_cache_dir() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/astrai, or ~/.cache/astrai."""
    return _user_dir("XDG_CACHE_HOME", ".cache")


def default_history_file() -> Path:
    """Where `chat` remembers what was typed: $XDG_STATE_HOME/astrai, or ~/.local/state/astrai."""
    return _user_dir("XDG_STATE_HOME", ".local/state") / "chat_history"


def _split_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path, in which a leading `~` is the user's home folder."""

Counts = Annotated[
    tuple[Annotated[int, Ge(1), Le(65536)], ...], BeforeValidator(_split_commas), Len(1, 64)
]
"""A short list of positive counts; text is split at its commas."""


class Group(BaseModel):
    """One group of options; frozen, so that a config can be shared between threads."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


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


class _StepBound(Group):
    """The option that bounds both what an export is built for and what serving runs."""

    max_prefill_chunk: int = Field(
        512,
        ge=1,
        le=4096,
        description="Most prompt tokens run in one step. An export is built for this many; "
        "serving may run fewer, never more than its artifact was built for.",
    )


class _Vision(Group):
    """The options of images, at export and where a backend runs model files as they are."""

    mmproj: UserPath | None = Field(
        None, description="GGUF file of the model's vision tower; without one it sees no images."
    )
    max_vision_patches: int | None = Field(
        None,
        ge=4,
        le=INT32_MAX,
        description="Most patches of an image, in whole groups of four; larger images are scaled "
        "down. 16384 for an export and 4096 for serving when left out; serving never uses more "
        "than its artifact was built for.",
    )


class ExportConfig(_StepBound, _Vision):
    """How a model file becomes an artifact."""


class LimitsConfig(_StepBound, _Vision):
    """What the engine may use at run time."""

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
    max_step_tokens: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Most tokens run in one step, prompts and answers together; as many as the "
        "artifact was built for when left out, never more.",
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
    max_cells: int | None = Field(
        None,
        ge=2,
        le=INT32_MAX,
        description="Cells of the cache, one of them left for padded writes; a whole context for "
        "every sequence, snapshot and capture slot when left out.",
    )
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


class ServeConfig(Group):
    """The HTTP server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    served_model_name: str | None = Field(
        None, description="Model id clients see; the model's own when left out."
    )
    max_choices: int = Field(
        8,
        ge=1,
        le=MAX_CHOICES,
        description="Most answers to one prompt that a request may ask for with `n`.",
    )
    chat_template: str = Field(
        "auto",
        description="Chat template: auto (the model's own, or the bundled one of its family), "
        "bundled, or a file.",
    )
    tool_parser: ToolParserName = Field(
        "none",
        description="How the model writes tool calls: atem (Muse Glimmer), hermes (Qwen and its "
        "like); none: requests with tools are refused.",
    )
    max_request_bytes: int = Field(
        MAX_REQUEST_BYTES,
        ge=1024,
        le=MAX_REQUEST_BYTES,
        description="Most bytes of a request: of its body, and of the line that carries it to "
        "the worker, with the newline.",
    )
    shutdown_timeout: float = Field(
        30.0, ge=0.0, le=3600.0, description="Seconds that running answers may take after SIGTERM."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log lines to write to stderr."
    )


class _Remote(Group):
    """The options of a server that somebody runs."""

    url: str | None = Field(
        None,
        description="OpenAI-compatible server to talk to; chat runs a model on this machine "
        "when left out.",
    )
    api_key: SecretStr | None = Field(None, description="Key that requests to the server carry.")


class ChatConfig(_Remote):
    """The conversation in the terminal."""

    system: str | None = Field(None, description="System message the conversation starts with.")
    history_file: UserPath = Field(
        default_factory=default_history_file,
        description="File that remembers the lines typed; $XDG_STATE_HOME/astrai/chat_history "
        "or ~/.local/state/astrai/chat_history when left out.",
    )
    read_timeout: float = Field(
        300.0, gt=0.0, le=86400.0, description="Seconds to wait for a server's next words."
    )


class BenchConfig(Group):
    """What `bench` measures."""

    prompt_lengths: Counts = Field(
        (128, 512), description="Prompt lengths, in tokens, whose prefill is timed."
    )
    batch_sizes: Counts = Field(
        (1, 8), description="Numbers of sequences decoded together that are timed."
    )
    decode_tokens: int = Field(
        64, ge=2, le=65536, description="Tokens each sequence decodes in one timed run."
    )
    repeats: int = Field(5, ge=1, le=1000, description="Timed runs of each measurement.")
    warmup: int = Field(1, ge=0, le=100, description="Runs before the timed ones, not counted.")
    quality: UserPath | None = Field(
        None, description="Text file to compare the artifact with its float32 reference on."
    )
    quality_tokens: int = Field(
        2048, ge=2, le=10_000_000, description="Tokens of that text that are scored."
    )
    quality_window: int = Field(
        512, ge=2, le=65536, description="Tokens scored at a time, each window on its own."
    )
    reference: UserPath | None = Field(
        None,
        description="GGUF file the reference is read from; the artifact's own source "
        "when left out.",
    )


class LoadConfig(_Remote):
    """The load that `bench serve` puts on a server."""

    requests: int = Field(100, ge=1, le=100_000, description="Requests to send.")
    concurrency: int = Field(
        8, ge=1, le=65536, description="Requests kept in flight; the next starts when one ends."
    )
    request_rate: float | None = Field(
        None,
        gt=0.0,
        le=100_000.0,
        description="Requests started a second, at random moments, however many are in flight; "
        "instead of concurrency.",
    )
    duration: float | None = Field(
        None,
        gt=0.0,
        le=86400.0,
        description="Seconds after which no more requests are started; all are when left out.",
    )
    prompt_words: Counts = Field(
        (128,), description="Prompt lengths, in random English words, to choose from at random."
    )
    prompts: UserPath | None = Field(
        None,
        description='File of prompts instead, each a line {"prompt": TEXT, "max_tokens": N}, where '
        "max_tokens may be left out; from its start again when it ends.",
    )
    shared_prefix: int = Field(
        0, ge=0, le=1_000_000, description="Words of a system message that all requests share."
    )
    answer_tokens: int = Field(
        64, ge=1, le=INT32_MAX, description="Most tokens of an answer, where no file says it."
    )
    ignore_eos: bool = Field(
        False,
        description="Ask for answers of full length, past the model's own end; for servers that "
        "know the field ignore_eos.",
    )
    load_seed: int = Field(
        0, ge=0, le=2**63 - 1, description="Makes random prompts and moments repeatable."
    )
    request_timeout: float = Field(
        300.0, gt=0.0, le=86400.0, description="Seconds after which a request is given up."
    )
    slo_ttft_ms: float | None = Field(
        None, gt=0.0, le=1e9, description="Target for the time to the first token, milliseconds."
    )
    slo_tpot_ms: float | None = Field(
        None, gt=0.0, le=1e9, description="Target for the time of each further token, milliseconds."
    )
    plot: UserPath | None = Field(
        None, description="PNG file to draw the distributions of the times into."
    )


class Config(Group):
    """All groups together."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    export: ExportConfig = Field(default_factory=ExportConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    chat: ChatConfig = Field(default_factory=ChatConfig)
    bench: BenchConfig = Field(default_factory=BenchConfig)
    load: LoadConfig = Field(default_factory=LoadConfig)
