import json
import re
from pathlib import Path
from typing import Any

import pytest
from muse_fixtures import CHAT_DRAFT, CHAT_MODEL, MMPROJ
from recording_backend import RecordingBackend
from tiny_models import CHAT_TEMPLATE, tiny_gguf

from astrai_cli.artifact import Artifact, create_artifact, export_model
from astrai_cli.config import ExportConfig
from astrai_cli.errors import (
    ArtifactError,
    BackendUnavailableError,
    InvalidInputError,
    ModelFileError,
)
from astrai_cli.files import sha256_of
from astrai_cli.manifest import MANIFEST_NAME, Source
from astrai_cli.models.vision_spec import VisionFile

CHAT_CONTEXT = 4096


def silent(what: str, fraction: float) -> None:
    pass


def export(tmp_path: Path, **overrides: Any) -> Artifact:
    source = tiny_gguf(tmp_path, **overrides)
    return export_model(source, tmp_path / "out", "recording", ExportConfig(), silent)


def test_holds_what_was_exported(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    written = export(tmp_path)
    artifact = Artifact.open(tmp_path / "out", verify=True)
    assert artifact == written
    assert artifact.spec.architecture == "llama"
    assert artifact.special_tokens.eos == (2, 0)
    assert artifact.chat_template == CHAT_TEMPLATE
    assert artifact.tokenizer().encode("<|im_end|>").ids == [2]
    manifest = artifact.manifest
    assert manifest.limits.model_dump() == {"max_prefill_chunk": 512, "max_context": 512}
    assert manifest.details == {"methods": ["forward"]}
    assert {*manifest.files} == {"tokenizer.json", "chat_template.jinja", "weights/model.bin"}
    assert manifest.export_options == ExportConfig().model_dump(mode="json")
    assert "astrai" in manifest.versions


def test_holds_what_sees_images(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    source = tiny_gguf(tmp_path, width=256)
    options = ExportConfig(mmproj=MMPROJ, max_vision_patches=1027)
    export_model(source, tmp_path / "out", "recording", options, silent)
    vision = Artifact.open(tmp_path / "out").manifest.vision
    assert vision is not None
    assert vision.max_patches == 1024
    assert vision.mmproj == Source(name=MMPROJ.name, sha256=sha256_of(MMPROJ))
    with VisionFile.open(MMPROJ) as tower:
        assert vision.spec == tower.spec


def test_a_tower_of_another_model_is_refused(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    source = tiny_gguf(tmp_path)
    with pytest.raises(ModelFileError, match=r"gives rows of 256, and the text model takes 64"):
        export_model(source, tmp_path / "out", "recording", ExportConfig(mmproj=MMPROJ), silent)
    assert list(tmp_path.iterdir()) == [source]


def test_holds_what_drafts(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    options = ExportConfig(draft_gguf=CHAT_DRAFT, max_draft_owners=3, draft_max_cells=5000)
    export_model(CHAT_MODEL, tmp_path / "out", "recording", options, silent)
    draft = Artifact.open(tmp_path / "out").manifest.draft
    assert draft is not None
    assert (draft.spec.max_block, draft.max_owners, draft.max_cells) == (8, 3, 5000)
    assert draft.source == Source(name=CHAT_DRAFT.name, sha256=sha256_of(CHAT_DRAFT))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"draft_gguf": CHAT_DRAFT, "draft_max_cells": CHAT_CONTEXT},
            f"{CHAT_CONTEXT} cells, and one for padded writes, need {CHAT_CONTEXT + 1}",
        ),
        (
            {"draft_gguf": CHAT_DRAFT, "draft_max_cells": 6000, "max_cells": 5999},
            "draft_max_cells is 6000, but max_cells is 5999",
        ),
        (
            {"draft_gguf": CHAT_DRAFT, "draft_max_cells": 65537},
            "draft_max_cells is 65537, but max_cells is 65536",
        ),
        ({"draft_max_cells": 6000}, "draft_max_cells is 6000, but there is no draft_gguf"),
        ({"max_draft_owners": 8}, "max_draft_owners is 8, but there is no draft_gguf"),
    ],
)
def test_bounds_that_a_draft_cannot_have_are_refused(
    tmp_path: Path, recording_backend: RecordingBackend, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        export_model(CHAT_MODEL, tmp_path / "out", "recording", ExportConfig(**options), silent)
    assert recording_backend.exports == 0
    assert not (tmp_path / "out").exists()


def test_older_records_of_a_draft(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    """One without a bound of cells has none; one without its largest block is to be made again."""
    folder = tmp_path / "out"
    export_model(CHAT_MODEL, folder, "recording", ExportConfig(draft_gguf=CHAT_DRAFT), silent)
    manifest = folder / MANIFEST_NAME
    fields = json.loads(manifest.read_text())
    del fields["draft"]["max_cells"]
    manifest.write_text(json.dumps(fields))
    draft = Artifact.open(folder).manifest.draft
    assert draft is not None
    assert draft.max_cells is None
    del fields["draft"]["spec"]["max_block"]
    manifest.write_text(json.dumps(fields))
    command = f"astrai export MODEL --backend recording --draft-gguf FILE --output {folder} --force"
    with pytest.raises(ArtifactError, match=re.escape(f"export it again: {command}")) as raised:
        Artifact.open(folder)
    assert "draft.spec.max_block" in str(raised.value)


def test_rope_factors_survive(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    written = export(tmp_path, llama3_rope=True, sliding_window=8)
    assert Artifact.open(tmp_path / "out").spec == written.spec


def test_a_model_without_template_has_none(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    assert export(tmp_path, chat_template=None).chat_template is None


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), OSError(28, "full")])
def test_a_failed_export_leaves_nothing(
    tmp_path: Path, recording_backend: RecordingBackend, error: BaseException
) -> None:
    source = tiny_gguf(tmp_path)
    recording_backend.fail = error
    wanted = ArtifactError if isinstance(error, OSError) else type(error)
    with pytest.raises(wanted):
        export_model(source, tmp_path / "out", "recording", ExportConfig(), silent)
    assert list(tmp_path.iterdir()) == [source]


def test_a_bad_model_is_refused_before_the_export(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    with pytest.raises(ModelFileError):
        export(tmp_path, pre="unheard-of")
    assert recording_backend.exports == 0
    assert not (tmp_path / "out").exists()


def test_overwrites_only_artifacts_and_only_when_told(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    export(tmp_path)
    with pytest.raises(ArtifactError, match="exists already"):
        export(tmp_path)
    source = tiny_gguf(tmp_path, seed=1)
    arguments = (source, tmp_path / "out", "recording", ExportConfig(), silent)
    recording_backend.fail = RuntimeError()
    with pytest.raises(RuntimeError):
        export_model(*arguments, overwrite=True)
    assert Artifact.open(tmp_path / "out", verify=True).manifest.source.name != source.name
    recording_backend.fail = None
    export_model(*arguments, overwrite=True)
    assert Artifact.open(tmp_path / "out", verify=True).manifest.source.name == source.name
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with (
        pytest.raises(ArtifactError, match="is not an artifact"),
        create_artifact(tmp_path / "mine", overwrite=True),
    ):
        raise AssertionError
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_an_empty_folder_is_filled(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    (tmp_path / "out").mkdir()
    export(tmp_path)


def test_an_unknown_backend_writes_nothing(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    with pytest.raises(BackendUnavailableError):
        export_model(source, tmp_path / "out", "absent", ExportConfig(), silent)
    assert list(tmp_path.iterdir()) == [source]


def test_open_finds_what_is_wrong(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    with pytest.raises(ArtifactError, match=r"has no astrai\.json"):
        Artifact.open(tmp_path)
    folder = export(tmp_path).path
    weights = folder / "weights" / "model.bin"
    content = weights.read_bytes()
    weights.write_bytes(content[::-1])
    Artifact.open(folder)
    with pytest.raises(ArtifactError, match="was altered"):
        Artifact.open(folder, verify=True)
    weights.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match="has 99 bytes, must have 100"):
        Artifact.open(folder)
    weights.unlink()
    with pytest.raises(ArtifactError, match=r"'weights/model.bin' is missing"):
        Artifact.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99, must have 1"),
        ({"format_version": None}, "format version None"),
        ({"backend": 3}, "backend: "),
        ({"surprise": 1}, "surprise: "),
        ({"files": {"../../etc/passwd": {"size": 1, "sha256": ""}}}, "inside the artifact"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, "inside the artifact"),
    ],
)
def test_open_refuses_a_bad_manifest(
    tmp_path: Path, recording_backend: RecordingBackend, change: dict[str, Any], message: str
) -> None:
    file = export(tmp_path).path / MANIFEST_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ArtifactError, match=message) as raised:
        Artifact.open(file.parent)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 100_000])
def test_open_refuses_what_is_no_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(ArtifactError):
        Artifact.open(tmp_path)
