"""The options of `bench`: of a model on this machine, and of a load on a server."""

from __future__ import annotations

from pydantic import Field

from astrai_cli.config.base import (
    INT32_MAX,
    Counts,
    Group,
    Remote,
    UserPath,
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
    draft_prompt: UserPath | None = Field(
        None,
        description="Text file whose continuation drafts are timed on; random tokens that repeat "
        "themselves when left out.",
    )
    synthetic_acceptance: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Time drafts whose tokens are right this often, in the place of real ones, "
        "to learn what acceptance would give what speed.",
    )
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


class LoadConfig(Remote):
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
