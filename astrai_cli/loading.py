"""From MODEL, as users name it, to an engine that runs it in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astrai_cli.config import ExportConfig, LimitsConfig, ModelConfig
from astrai_cli.engine.engine import InferenceEngine
from astrai_cli.engine.speculation import Proposer
from astrai_cli.errors import AstraiError, BackendUnavailableError, InvalidInputError
from astrai_cli.models.resolve import resolve_artifact, resolve_model_file
from astrai_cli.models.text import TextModel
from astrai_cli.settings import read_settings, update_group
from backends.base import EXPORTED_CELLS, EXPORTED_STEP_TOKENS, EXPORTED_VISION_PATCHES, Progress
from backends.registry import check_options, get_backend

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """What a backend opens: an artifact folder, or a model file for one that runs those."""

    source: Path
    backend: str


def prepare_model(
    model: str, config: ModelConfig, export: ExportConfig, progress: Progress
) -> RunnableModel:
    """Pull and export MODEL where that is needed, for steps and images of `export` at least.

    Raises ModelFileError, ArtifactError, DownloadError, BackendUnavailableError.
    """
    if config.backend is not None and get_backend(config.backend).runs_model_files:
        source = resolve_model_file(model, config.cache_dir, progress)
        return RunnableModel(source, config.backend)
    options = _shared_export(export)
    artifact = resolve_artifact(model, config.cache_dir, config.backend, options, progress)
    return RunnableModel(artifact.path, artifact.manifest.backend)


def _shared_export(export: ExportConfig) -> ExportConfig:
    """One artifact serves all smaller steps, caches and images; only larger ones need their own."""
    chunk = max(export.max_prefill_chunk, ExportConfig().max_prefill_chunk)
    usual = {
        "max_vision_patches": EXPORTED_VISION_PATCHES,
        "max_step_tokens": EXPORTED_STEP_TOKENS,
        "max_cells": EXPORTED_CELLS,
    }
    smaller = {name: None for name, most in usual.items() if (getattr(export, name) or 0) <= most}
    return export.model_copy(update={"max_prefill_chunk": chunk, "max_seq_len": None, **smaller})


def open_engine(
    model: RunnableModel,
    limits: LimitsConfig,
    on_evicted: Callable[[str], None] = lambda session_id: None,
    proposer: Proposer | None = None,
) -> InferenceEngine:
    """Open what `prepare_model` returned; the others as in InferenceEngine. Raises AstraiError."""
    backend = get_backend(model.backend)
    if reason := backend.unavailable():
        raise BackendUnavailableError(reason)
    check_options(backend, limits)
    text = TextModel.read(model.source, limits.hf_tokenizer)
    executor = backend.open(model.source, limits)
    try:
        return InferenceEngine(executor, text, limits, on_evicted=on_evicted, proposer=proposer)
    except AstraiError:
        executor.close()
        raise


def load(model: str | Path, backend: str | None = None, **limits: object) -> InferenceEngine:
    """An engine in this process for MODEL: an alias, a GGUF file or an artifact folder.

    A model file is exported into the cache folder on first use, which takes minutes;
    `backend="eager"` runs it as it is, in float32. `limits` are options of the config
    model's limits group; what is not given comes from `astrai.toml`, `ASTRAI_*`
    variables and defaults. Raises AstraiError.
    """
    config = read_settings({}).config
    if unknown := limits.keys() - LimitsConfig.model_fields.keys():
        raise InvalidInputError(f"load: no limit is called {', '.join(sorted(unknown))}")
    chosen = config.model.model_copy(update={"backend": backend or config.model.backend})
    shared = {name: limit for name, limit in limits.items() if name in ExportConfig.model_fields}
    export = update_group(config.export, shared, "load")
    runnable = prepare_model(
        str(model), chosen, export, lambda what, fraction: log.debug("%s", what)
    )
    return open_engine(runnable, update_group(config.limits, limits, "load"))
