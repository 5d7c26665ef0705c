"""From a model's name to what runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from muse_fixtures import MMPROJ
from parrot import SAYING
from recording_backend import RecordingBackend
from tiny_models import tiny_gguf

import astrai_cli
from astrai_cli.artifact import Artifact, export_model
from astrai_cli.commands.prepare import prepare
from astrai_cli.config import Config, ExportConfig, LimitsConfig, ModelConfig
from astrai_cli.errors import BackendUnavailableError, InvalidInputError, ModelFileError
from astrai_cli.loading import RunnableModel, open_engine


def test_load_runs_a_model_file(parrot: Path) -> None:
    with astrai_cli.load(parrot, backend="eager", max_context=64) as engine:
        assert engine.info.max_context == 64
        answer = engine.generate("<|im_start|>assistant\n", temperature=0.0)
    assert answer.text == SAYING
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_contxt": 64}, "load: no limit is called max_contxt"),
        ({"max_context": 1}, "load: max_context: '1' is not a whole number above 1"),
    ],
)
def test_load_refuses_limits_that_are_none(
    parrot: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        astrai_cli.load(parrot, backend="eager", **options)


def test_load_names_what_it_cannot_find(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        astrai_cli.load(tmp_path / "nothing.gguf", backend="eager")
    with pytest.raises(BackendUnavailableError, match="abacus"):
        astrai_cli.load(tiny_gguf(tmp_path), backend="abacus")


def test_a_smaller_chunk_needs_no_artifact_of_its_own(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    source = tiny_gguf(tmp_path)

    def prepared(chunk: int) -> Path:
        config = Config(
            model=ModelConfig(cache_dir=tmp_path / "cache"),
            export=ExportConfig(max_prefill_chunk=chunk),
            limits=LimitsConfig(max_prefill_chunk=chunk),
        )
        return prepare(str(source), config).source

    assert prepared(512) == prepared(64)
    assert recording_backend.exports == 1
    assert prepared(1024) != prepared(512)
    assert recording_backend.exports == 2


def test_smaller_images_need_no_artifact_of_their_own(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    source = tiny_gguf(tmp_path, width=256)

    def most_patches(asked: int | None) -> int:
        config = Config(
            model=ModelConfig(cache_dir=tmp_path / "cache"),
            export=ExportConfig(mmproj=MMPROJ, max_vision_patches=asked),
        )
        vision = Artifact.open(prepare(str(source), config).source).manifest.vision
        assert vision is not None
        return vision.max_patches

    assert [most_patches(asked) for asked in (None, 64, 16384)] == [16384] * 3
    assert recording_backend.exports == 1
    assert most_patches(20000) == 20000
    assert recording_backend.exports == 2


@pytest.mark.parametrize(
    ("backend", "limits"),
    [
        ("eager", {"device": "cuda"}),
        ("mlx", {"kv_dtype": "float32"}),
        ("cuda", {"kv_dtype": "float32"}),
    ],
)
def test_options_that_a_backend_lacks_are_refused(
    tmp_path: Path, backend: str, limits: dict[str, str]
) -> None:
    (name,) = limits
    model = RunnableModel(tiny_gguf(tmp_path), backend)
    with pytest.raises(InvalidInputError, match=f"the {backend} backend takes no {name}"):
        open_engine(model, LimitsConfig.model_validate(limits))
    with pytest.raises(InvalidInputError, match="the cpu backend takes no format"):
        export_model(model.source, tmp_path / "out", "cpu", ExportConfig(format="pte"), print)
    assert not (tmp_path / "out").exists()
