"""What `bench` does with a model: open it with the limits that a measurement needs, and measure."""

from __future__ import annotations

from pathlib import Path

from astrai_cli.artifact import Artifact
from astrai_cli.benchmark.drafts import (
    DraftMeasurement,
    draft_prompt_length,
    measure_drafts,
    repeating_prompt,
)
from astrai_cli.benchmark.quality import Quality, compare
from astrai_cli.benchmark.replay import ReplayProposer
from astrai_cli.benchmark.speed import Measurement, context_needed, measure_speed
from astrai_cli.config import Config, LimitsConfig
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
    bench = config.bench
    # Random prompts have nothing to guess from; `run_drafts` is there for that.
    without = {"speculate": "none", "dflash": False}
    limits = _limits_for(config, context_needed(bench)).model_copy(update=without)
    with open_engine(model, limits) as engine:
        return measure_speed(engine, bench, progress)


def run_drafts(
    model: RunnableModel, config: Config, progress: Progress
) -> list[DraftMeasurement] | None:
    """Time answers with and without drafts; None where none are asked for. Raises AstraiError."""
    bench = config.bench
    replay = None
    if bench.synthetic_acceptance is not None:
        n_draft = config.limits.ngram_n_draft
        replay = ReplayProposer({}, bench.synthetic_acceptance, n_draft)
    elif config.limits.speculate == "none" and not config.limits.dflash:
        if bench.draft_prompt is not None:
            raise InvalidInputError(
                f"--draft-prompt: {bench.draft_prompt} is for drafts, and there are none without "
                "--speculate, --dflash or --synthetic-acceptance",
                param="draft_prompt",
            )
        return None
    n_prompt = draft_prompt_length(bench)
    limits = _limits_for(config, n_prompt + bench.decode_tokens)
    with open_engine(model, limits, proposer=replay) as engine:
        if bench.draft_prompt is None:
            prompt = repeating_prompt(engine.info.spec.vocab_size)
        else:
            prompt = _tokens(engine.text, bench.draft_prompt, n_prompt, "--draft-prompt")
        return measure_drafts(engine, prompt, bench, progress, replay)


def _limits_for(config: Config, n_positions: int) -> LimitsConfig:
    """The limits, with room for the batches that are measured."""
    bench, limits = config.bench, config.limits
    batch = max(bench.batch_sizes)
    changes = {
        "max_context": limits.max_context or n_positions,
        "max_decode_sequences": max(batch, limits.max_decode_sequences),
        "max_inflight_requests": max(batch, limits.max_inflight_requests),
    }
    return update_group(limits, changes, "--batch-sizes")


def run_quality(
    model: RunnableModel, reference: Path, text_file: Path, config: Config, progress: Progress
) -> Quality:
    """Compare the model with the float32 of the GGUF file `reference`. Raises AstraiError."""
    bench = config.bench
    text = TextModel.read(model.source, config.limits.hf_tokenizer)
    tokens = _tokens(text, text_file, bench.quality_tokens, "--quality")
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


def _tokens(model: TextModel, file: Path, n: int, option: str) -> list[int]:
    """The first n tokens of a text file that the option names."""
    param = option.removeprefix("--").replace("-", "_")
    try:
        with file.open(encoding="utf-8") as text:
            start = text.read(_CHARS_PER_TOKEN * n)
    except OSError as error:
        raise InvalidInputError(f"{option}: {file}: {error.strerror}", param=param) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{option}: {file} is not UTF-8", param=param) from error
    tokens = model.encode_prompt(start)[:n]
    if len(tokens) < 2:
        raise InvalidInputError(
            f"{option}: {file} has {len(tokens)} tokens, at least 2 are needed", param=param
        )
    return tokens
