"""Speed and quality runs on tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording_backend import RecordingBackend
from tiny_models import VOCABULARY, tiny_gguf

from astrai_cli.artifact import export_model
from astrai_cli.benchmark.runs import find_reference, run_drafts, run_quality, run_speed
from astrai_cli.config import BenchConfig, Config, ExportConfig, LimitsConfig, ModelConfig
from astrai_cli.errors import AstraiError, InvalidInputError
from astrai_cli.loading import RunnableModel


def silent(what: str, fraction: float) -> None:
    pass


def bench(**options: Any) -> Config:
    return Config(bench=BenchConfig(**{"repeats": 2, "warmup": 0, "decode_tokens": 6, **options}))


def test_speed_runs_all_sequences_together(tmp_path: Path) -> None:
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    # More sequences than run at once by default.
    measured = run_speed(model, bench(prompt_lengths=(20,), batch_sizes=(3, 12)), silent)
    assert [(each.kind, each.size) for each in measured] == [
        ("prefill", 20),
        ("decode", 3),
        ("decode", 12),
    ]
    for each in measured:
        assert len(each.runs) == 2
        assert min(each.runs) <= each.median <= max(each.runs)


def test_drafts_are_timed_beside_none(tmp_path: Path) -> None:
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    config = bench(batch_sizes=(2,), decode_tokens=12)
    assert run_drafts(model, config, silent) is None
    limits = LimitsConfig(speculate="ngram", adaptive_drafts=False)
    (measured,) = run_drafts(model, config.model_copy(update={"limits": limits}), silent) or []
    assert measured.batch == 2
    assert len(measured.plain) == len(measured.drafted) == 2
    assert measured.proposed >= measured.accepted
    assert measured.gain > 0


def test_a_text_for_drafts_is_refused_without_drafts(tmp_path: Path) -> None:
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    with pytest.raises(InvalidInputError, match=r"text\.txt is for drafts, and there are none"):
        run_drafts(model, bench(draft_prompt=tmp_path / "text.txt"), silent)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_synthetic_drafts_are_right_as_often_as_asked(tmp_path: Path, acceptance: float) -> None:
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    config = bench(batch_sizes=(1,), decode_tokens=11, synthetic_acceptance=acceptance)
    limits = LimitsConfig(ngram_n_draft=4, adaptive_drafts=False)
    (measured,) = run_drafts(model, config.model_copy(update={"limits": limits}), silent) or []
    assert measured.acceptance == acceptance
    assert measured.accepted_length == (4 if acceptance else 0)


def test_a_prompt_that_the_model_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = RunnableModel(tiny_gguf(tmp_path, context_length=32), "eager")
    with pytest.raises(InvalidInputError, match="the model's context is 32"):
        run_speed(model, bench(prompt_lengths=(64,), batch_sizes=(1,)), silent)


def test_quality_tells_two_models_apart(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    other = tiny_gguf(tmp_path, seed=1)
    config = bench(quality_tokens=65, quality_window=16)

    same = run_quality(model, model.source, text, config, silent)
    different = run_quality(model, other, text, config, silent)

    # The 65th token would be a window of its own, which predicts nothing.
    assert same.tokens == different.tokens == 64
    assert same.kl == pytest.approx(0.0, abs=1e-6)
    assert same.top1_agreement == 1.0
    assert different.kl > 0.1
    assert different.perplexity == same.perplexity
    assert 1 < same.perplexity < 1000 * VOCABULARY


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has 0 tokens"), (b"\xff\xfe\xff", "is not UTF-8"), (None, "No such file")],
)
def test_a_text_that_cannot_be_scored_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    model = RunnableModel(tiny_gguf(tmp_path), "eager")
    with pytest.raises(AstraiError, match=f"--quality: {text}") as caught:
        run_quality(model, model.source, text, bench(), silent)
    assert message in str(caught.value)


def test_the_reference_is_the_file_an_artifact_was_made_from(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    source = tiny_gguf(tmp_path)
    artifact = tmp_path / "artifact"
    export_model(source, artifact, "recording", ExportConfig(), silent)
    model = RunnableModel(artifact, "recording")
    config = Config(model=ModelConfig(cache_dir=tmp_path / "cache"), limits=LimitsConfig())

    assert find_reference(str(source), model, config) == source
    with pytest.raises(InvalidInputError, match=f"--reference: .*{source.name}"):
        find_reference(str(artifact), model, config)

    pulled = tmp_path / "cache" / "models" / source.name
    pulled.parent.mkdir(parents=True)
    pulled.write_bytes(b"another file of that name")
    with pytest.raises(InvalidInputError, match="--reference"):
        find_reference(str(artifact), model, config)
    pulled.write_bytes(source.read_bytes())
    assert find_reference(str(artifact), model, config) == pulled
