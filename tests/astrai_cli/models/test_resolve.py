import threading
from pathlib import Path

import pytest
from muse_fixtures import MMPROJ
from recording_backend import RecordingBackend
from tiny_models import tiny_gguf

from astrai_cli.artifact import Artifact
from astrai_cli.config import ExportConfig
from astrai_cli.errors import ArtifactError, ModelFileError
from astrai_cli.models.resolve import resolve_artifact, resolve_model_file


def silent(what: str, fraction: float) -> None:
    pass


def resolve(model: Path, cache: Path, options: ExportConfig | None = None) -> Artifact:
    return resolve_artifact(str(model), cache, "recording", options or ExportConfig(), silent)


def test_exports_once_for_each_source_and_options(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    first, second = tiny_gguf(tmp_path), tiny_gguf(tmp_path, seed=1)
    cache = tmp_path / "cache"
    paths = {resolve(first, cache).path for _ in range(2)}
    smaller = ExportConfig(max_prefill_chunk=64)
    paths |= {resolve(second, cache).path, resolve(first, cache, smaller).path}
    assert (len(paths), recording_backend.exports) == (3, 3)


def test_a_tower_counts_by_what_it_is(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    """Not by its path: the same bytes elsewhere are the same, other bytes in its place are not."""
    source, cache = tiny_gguf(tmp_path, width=256), tmp_path / "cache"
    mmproj, moved = tmp_path / "mmproj.gguf", tmp_path / "moved.gguf"
    mmproj.write_bytes(MMPROJ.read_bytes())
    blind = resolve(source, cache)
    seeing = resolve(source, cache, ExportConfig(mmproj=mmproj))
    assert (blind.manifest.vision, seeing.path == blind.path) == (None, False)
    mmproj.rename(moved)
    assert resolve(source, cache, ExportConfig(mmproj=moved)).path == seeing.path
    mmproj.write_bytes(MMPROJ.read_bytes() + b"!")
    assert resolve(source, cache, ExportConfig(mmproj=mmproj)).path != seeing.path
    assert recording_backend.exports == 3
    with pytest.raises(ModelFileError, match=r"absent\.gguf"):
        resolve(source, cache, ExportConfig(mmproj=tmp_path / "absent.gguf"))


def test_an_artifact_is_taken_as_it_is(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    source = tiny_gguf(tmp_path)
    artifact = resolve(source, tmp_path / "cache")
    assert resolve(artifact.path, tmp_path / "cache") == artifact
    assert recording_backend.exports == 1


def test_a_damaged_cache_entry_is_made_again(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    source = tiny_gguf(tmp_path)
    artifact = resolve(source, tmp_path / "cache")
    (artifact.path / "weights" / "model.bin").unlink()
    assert resolve(source, tmp_path / "cache").path == artifact.path
    assert (artifact.path / "weights" / "model.bin").exists()
    assert recording_backend.exports == 2


def test_two_at_once_export_once(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    source = tiny_gguf(tmp_path)
    threads = [
        threading.Thread(target=resolve, args=(source, tmp_path / "cache")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording_backend.exports == 1


def test_an_artifact_belongs_to_its_backend(
    tmp_path: Path, recording_backend: RecordingBackend
) -> None:
    artifact = resolve(tiny_gguf(tmp_path), tmp_path / "cache")
    model, options = str(artifact.path), ExportConfig()
    assert resolve_artifact(model, tmp_path, None, options, silent) == artifact
    with pytest.raises(ArtifactError, match="for the backend 'recording', not 'cpu'"):
        resolve_artifact(model, tmp_path, "cpu", options, silent)


def test_names_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no such file.*smollm2-135m"):
        resolve_model_file("smolm2", tmp_path, silent)
    with pytest.raises(ModelFileError, match="is a folder"):
        resolve_model_file(str(tmp_path), tmp_path, silent)
    source = tiny_gguf(tmp_path)
    assert resolve_model_file(str(source), tmp_path, silent) == source
