"""The config model: the one definition of every option, with its default, bounds and help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

INT32_MAX = 2**31 - 1


def default_cache_dir() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/astrai, or ~/.cache/astrai."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "astrai"


class Group(BaseModel):
    """One group of options; frozen, so that a config can be shared between threads."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelConfig(Group):
    """Which model, and what runs it."""

    backend: str | None = Field(
        None, description="Backend to use; the best one for this machine when left out."
    )
    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="Folder for pulled models and for artifacts exported on first use.",
    )


class ExportConfig(Group):
    """How a model file becomes an artifact."""

    max_prefill_chunk: int = Field(
        512, ge=1, le=4096, description="Most tokens one step of the exported model can run."
    )
    profile: Literal["fast", "balanced", "exact"] = Field(
        "balanced", description="Trade between speed and fidelity of the exported weights."
    )


class LimitsConfig(Group):
    """What the engine may use at run time."""

    max_context: int | None = Field(
        None,
        gt=1,
        le=INT32_MAX,
        description="Positions one sequence may use, prompt and answer together; "
        "the smaller of the model's context and 4096 when left out.",
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
    max_prefill_chunk: int = Field(
        256, ge=1, le=4096, description="Prompt tokens run in one step beside running answers."
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
    shutdown_timeout: float = Field(
        30.0, ge=0.0, le=3600.0, description="Seconds that running answers may take after SIGTERM."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log lines to write to stderr."
    )
