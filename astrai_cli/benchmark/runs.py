"""What `bench` does with a model: open it with the limits that a measurement needs, and measure."""

from __future__ import annotations

from pathlib import Path

from astrai_cli.artifact import Artifact
from astrai_cli.benchmark.quality import Quality, compare
from astrai_cli.benchmark.speed import Measurement, context_needed, measure_speed
from astrai_cli.config import BenchConfig, Config, LimitsConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.files import sha256_of
from astrai_cli.loading import RunnableModel, open_engine
from astrai_cli.models.pull import models_folder
from astrai_cli.models.text import TextModel
from astrai_cli.settings import update_group
from backends.base import Progress

REFERENCE_BACKEND = "eager"
# No tokenizer spends more characters on the average token of a text.
_CHARS_PER_TOKEN = 64


def run_speed(model: RunnableModel, config: Config, progress: Progress) -> list[Measurement]:
    """Time the model. Raises AstraiError."""
    bench, limits = config.bench, config.limits
    batch = max(bench.batch_sizes)
    changes = {
        "max_context": limits.max_context or context_needed(bench),
        "max_decode_sequences": max(batch, limits.max_decode_sequences),
        "max_inflight_requests": max(batch, limits.max_inflight_requests),
    }
    with open_engine(model, update_group(limits, changes, "--batch-sizes")) as engine:
        return measure_speed(engine, bench, progress)


def run_quality(
    model: RunnableModel, reference: Path, text_file: Path, config: Config, progress: Progress
) -> Quality:
    """Compare the model with the float32 of the GGUF file `reference`. Raises AstraiError."""
    bench = config.bench
    tokens = _tokens(TextModel.read(model.source, config.limits.hf_tokenizer), text_file, bench)
    changes = {"max_context": bench.quality_window, "max_decode_sequences": 1}
    limits = update_group(config.limits, changes, "--quality-window")
    exact = RunnableModel(reference, REFERENCE_BACKEND)
    with open_engine(exact, _in_float32(limits)) as ours, open_engine(model, limits) as theirs:
        if ours.info.spec.vocab_size != theirs.info.spec.vocab_size:
            raise InvalidInputError(
                f"--reference: {reference} has {ours.info.spec.vocab_size} tokens, "
                f"the model has {theirs.info.spec.vocab_size}",
                param="reference",
            )
        return compare(
            ours.score,
            theirs.score,
            tokens,
            bench.quality_window,
            lambda done: progress("comparing with the reference", done),
        )


def find_reference(named: str, model: RunnableModel, config: Config) -> Path:
    """The model file that the float32 reference is read from; `named` is the user's MODEL.

    Raises InvalidInputError where the one an artifact was made from is not at hand.
    """
    if config.bench.reference is not None:
        return config.bench.reference
    if model.source.is_file():
        return model.source
    source = Artifact.open(model.source).manifest.source
    pulled = models_folder(config.model.cache_dir) / source.name
    for file in (Path(named), pulled):
        if file.is_file() and sha256_of(file) == source.sha256:
            return file
    raise InvalidInputError(
        f"--reference: {model.source} was made from {source.name} with SHA-256 "
        f"{source.sha256}, which is not in {pulled.parent}; name the file",
        param="reference",
    )


def _in_float32(limits: LimitsConfig) -> LimitsConfig:
    return limits.model_copy(update={"kv_dtype": "float32"})


def _tokens(model: TextModel, file: Path, bench: BenchConfig) -> list[int]:
    """The first tokens of a text file."""
    try:
        with file.open(encoding="utf-8") as text:
            start = text.read(_CHARS_PER_TOKEN * bench.quality_tokens)
    except OSError as error:
        raise InvalidInputError(f"--quality: {file}: {error.strerror}", param="quality") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"--quality: {file} is not UTF-8", param="quality") from error
    tokens = model.encode_prompt(start)[: bench.quality_tokens]
    if len(tokens) < 2:
        raise InvalidInputError(
            f"--quality: {file} has {len(tokens)} tokens, at least 2 are needed", param="quality"
        )
    return tokens
