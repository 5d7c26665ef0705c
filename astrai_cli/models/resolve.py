"""What MODEL on the command line stands for: an alias, a GGUF file or an artifact folder."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from astrai_cli.artifact import Artifact, export_model, is_artifact, producing_versions
from astrai_cli.config import ExportConfig
from astrai_cli.errors import ArtifactError, ModelFileError
from astrai_cli.files import file_lock, sha256_of
from astrai_cli.manifest import FORMAT_VERSION
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.hf import CONFIG_NAME, is_hf_folder
from astrai_cli.models.pull import ALIASES, HUB_PREFIX, pull
from astrai_cli.models.source import model_name, open_source, open_vision
from backends.base import Progress
from backends.registry import default_backend

KEY_DIGITS = 16


def resolve_model_file(model: str, cache_dir: Path, progress: Progress) -> Path:
    """The GGUF file or Hugging Face folder that MODEL names, pulled where it is an alias.

    Raises ModelFileError, DownloadError.
    """
    if model in ALIASES or model.startswith(HUB_PREFIX):
        return pull(model, cache_dir, progress)
    path = Path(model)
    # Unlike pathlib's own, these take a name too long for a file for one that is not there.
    if os.path.isdir(path) and not is_model_folder(path):
        raise ModelFileError(f"{model} is a folder without a model: it has no {CONFIG_NAME}")
    if not os.path.exists(path):
        raise ModelFileError(
            f"{model}: no such file, and not one of the models known by name: "
            f"{', '.join(ALIASES)}, {HUB_PREFIX}ORG/REPO/FILE"
        )
    return path


def is_model_folder(path: Path) -> bool:
    """Whether it is one of Hugging Face; some artifacts have its files too."""
    return is_hf_folder(path) and not is_artifact(path)


def resolve_artifact(
    model: str, cache_dir: Path, backend: str | None, options: ExportConfig, progress: Progress
) -> Artifact:
    """The artifact that MODEL names; a GGUF file is exported into the cache folder once.

    backend: None takes the artifact's own, or the default for a model file.
    Raises ArtifactError, ModelFileError, DownloadError, BackendUnavailableError.
    """
    path = Path(model)
    if model not in ALIASES and os.path.isdir(path) and not is_model_folder(path):
        artifact = Artifact.open(path)
        if backend not in (None, artifact.manifest.backend):
            raise ArtifactError(
                f"{path} was exported for the backend {artifact.manifest.backend!r}, "
                f"not {backend!r}"
            )
        return artifact
    source = resolve_model_file(model, cache_dir, progress)
    return _export_once(source, cache_dir, backend or default_backend(), options, progress)


def _export_once(
    source: Path, cache_dir: Path, backend: str, options: ExportConfig, progress: Progress
) -> Artifact:
    with (
        open_source(source) as model,
        open_vision(model, options.mmproj),
        open_draft(model, options.draft_gguf),
    ):
        key = _cache_key(model.sha256, backend, options)
    target = cache_dir / "artifacts" / f"{model_name(source)}-{backend}-{key}"
    if (artifact := _open_whole(target)) is not None:
        return artifact
    lock = target.with_name(f"{target.name}.lock")
    try:
        with file_lock(lock, lambda: progress("waiting for another export", 0.0)):
            return _open_whole(target) or export_model(
                source, target, backend, options, progress, overwrite=True
            )
    except OSError as error:
        raise ArtifactError(f"{target}: {error.strerror or error}") from error


def _cache_key(source_sha256: str, backend: str, options: ExportConfig) -> str:
    """Tells apart all that makes one artifact differ from another."""
    chosen = options.model_dump(mode="json")
    if options.mmproj is not None:
        chosen["mmproj"] = sha256_of(options.mmproj)
    if options.draft_gguf is not None:
        chosen["draft_gguf"] = sha256_of(options.draft_gguf)
    parts = [
        source_sha256,
        backend,
        chosen,
        FORMAT_VERSION,
        producing_versions(),
    ]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def _open_whole(target: Path) -> Artifact | None:
    """The cached artifact; None where there is none or it is damaged, to be made again."""
    try:
        return Artifact.open(target) if is_artifact(target) else None
    except ArtifactError:
        return None
