"""An exported model on disk: a folder with a manifest, written whole or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from astrai_cli.config import ExportConfig
from astrai_cli.errors import ArtifactError
from astrai_cli.files import partial_folder, sha256_of, sync, sync_folder
from astrai_cli.models.draft_spec import DraftFile, DraftSpec, open_draft
from astrai_cli.models.source import open_source, open_vision
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.vision_spec import VisionSpec
from backends.base import (
    EXPORTED_VISION_PATCHES,
    Progress,
    check_options,
    get_backend,
    vision_patch_limit,
)

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST_NAME = "astrai.json"
TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
MAX_MANIFEST_BYTES = 2**24
PRODUCERS = ("astrai", "torch", "executorch", "mlx")


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a path inside the artifact")
    return name


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArtifactLimits(_Part):
    """What the program was exported for, in tokens."""

    max_prefill_chunk: int = Field(ge=1)
    max_context: int = Field(ge=1)


class Source(_Part):
    """The model file an artifact was made from."""

    name: str
    sha256: str


class ArtifactVision(_Part):
    """The vision tower.

    max_patches: of an image. mmproj: the file it was made from; None where the model has it.
    """

    spec: VisionSpec
    max_patches: int = Field(ge=4)
    mmproj: Source | None


class ArtifactDraft(_Part):
    """The block draft, with the largest block, and the file it was made from.

    max_owners: sequences that it drafts for at once.
    """

    spec: DraftSpec
    max_owners: int = Field(ge=1)
    source: Source


class FileEntry(_Part):
    size: int = Field(ge=0)
    sha256: str


class Manifest(_Part):
    """What `astrai.json` holds.

    details: what the backend noted about its own files, such as their methods.
    files: every file of the folder but the manifest, by its path inside it.
    versions: the packages that produced it.
    """

    format_version: int
    backend: str
    spec: ModelSpec
    limits: ArtifactLimits
    special_tokens: SpecialTokens
    source: Source
    vision: ArtifactVision | None = None
    draft: ArtifactDraft | None = None
    export_options: dict[str, Any]
    details: dict[str, Any]
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]
    versions: dict[str, str]


@dataclass(frozen=True)
class Artifact:
    """An artifact folder that has been opened and checked."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, *, verify: bool = False) -> Artifact:
        """Check the manifest and that every file is there with its size; digests on `verify`.

        Raises ArtifactError.
        """
        manifest = _read_manifest(path)
        for name, entry in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise ArtifactError(f"{path}: the file {name!r} is missing")
            size = file.stat().st_size
            if size != entry.size:
                raise ArtifactError(f"{file} has {size} bytes, must have {entry.size}")
            if verify and sha256_of(file) != entry.sha256:
                raise ArtifactError(f"{file} was altered: its SHA-256 is not {entry.sha256}")
        return cls(path, manifest)

    @property
    def spec(self) -> ModelSpec:
        return self.manifest.spec

    @property
    def special_tokens(self) -> SpecialTokens:
        return self.manifest.special_tokens

    @cached_property
    def chat_template(self) -> str | None:
        """The model's own Jinja template, where it has one."""
        if TEMPLATE_NAME not in self.manifest.files:
            return None
        try:
            return (self.path / TEMPLATE_NAME).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{self.path / TEMPLATE_NAME}: {error}") from error

    def tokenizer(self) -> Tokenizer:
        """A new tokenizer; raises ArtifactError where its file cannot be read."""
        try:
            text = (self.path / TOKENIZER_NAME).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{self.path / TOKENIZER_NAME}: {error}") from error
        try:
            return Tokenizer.from_str(text)
        except Exception as error:
            # The library raises plain Exception for whatever it cannot parse.
            raise ArtifactError(f"{self.path / TOKENIZER_NAME}: {error}") from error


def is_artifact(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file()


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST_NAME
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{file} has more than {MAX_MANIFEST_BYTES} bytes")
        fields = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"{path}: not an artifact: it has no {MANIFEST_NAME}") from None
    except OSError as error:
        raise ArtifactError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ArtifactError(f"{file} is not JSON") from None
    found = fields.get("format_version") if isinstance(fields, dict) else None
    if found != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has the format version {found}, must have {FORMAT_VERSION}: export it again"
        )
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{file}: {where}: {first['msg']}") from None


@contextmanager
def create_artifact(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """An empty folder to write an artifact into; it becomes `target` when the block ends well.

    Otherwise nothing is left. An existing artifact is replaced only on `overwrite`,
    any other existing file or folder never. Raises ArtifactError.
    """
    _refuse_existing(target, overwrite)
    try:
        with partial_folder(target) as partial:
            fresh = partial / "new"
            fresh.mkdir()
            yield fresh
            sync_folder(fresh)
            _refuse_existing(target, overwrite)
            _move_into_place(fresh, target, partial / "old")
            sync(target.parent)
    except OSError as error:
        raise ArtifactError(f"{target} cannot be written: {error.strerror or error}") from error


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not is_artifact(target):
        raise ArtifactError(f"{target} exists and is not an artifact")
    if not overwrite:
        raise ArtifactError(f"{target} exists already; --force replaces it")


def _move_into_place(fresh: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def export_model(
    source: Path,
    target: Path,
    backend_name: str,
    options: ExportConfig,
    progress: Progress,
    *,
    overwrite: bool = False,
) -> Artifact:
    """Export `source` for a backend as the artifact folder `target`.

    source: a GGUF file or a Hugging Face folder.
    Raises ModelFileError, ArtifactError, BackendUnavailableError, InvalidInputError.
    """
    backend = get_backend(backend_name)
    check_options(backend, options)
    if options.max_seq_len is not None:
        log.warning(
            "--max-seq-len %d is ignored: an export has the model's own context, and "
            "--max-context bounds it when it runs",
            options.max_seq_len,
        )
    with create_artifact(target, overwrite=overwrite) as folder:
        progress("reading the model file", 0.0)
        with (
            open_source(source) as model,
            open_vision(model, options.mmproj) as tower,
            open_draft(model, options.draft_gguf) as drafter,
        ):
            # First what is cheap to find wrong, then the export.
            model.tokenizer().save(str(folder / TOKENIZER_NAME))
            template = model.chat_template()
            if template is not None:
                (folder / TEMPLATE_NAME).write_text(template, encoding="utf-8", newline="")
            special_tokens = model.special_tokens()
            spec, digest = model.spec, model.sha256
            vision = None if tower is None else _describe_tower(tower.spec, options)
            draft = None if drafter is None else _describe_draft(drafter, options)
        details = backend.export(source, folder, options, progress)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            backend=backend_name,
            spec=spec,
            limits=ArtifactLimits(
                max_prefill_chunk=options.max_prefill_chunk, max_context=spec.context_length
            ),
            special_tokens=special_tokens,
            source=Source(name=source.name, sha256=digest),
            vision=vision,
            draft=draft,
            export_options=options.model_dump(mode="json"),
            details=dict(details or {}),
            files=_describe_files(folder),
            versions=producing_versions(),
        )
        (folder / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n")
    return Artifact(target, manifest)


def _describe_tower(spec: VisionSpec, options: ExportConfig) -> ArtifactVision:
    path = options.mmproj
    return ArtifactVision(
        spec=spec,
        max_patches=vision_patch_limit(options.max_vision_patches, EXPORTED_VISION_PATCHES),
        mmproj=None if path is None else Source(name=path.name, sha256=sha256_of(path)),
    )


def _describe_draft(file: DraftFile, options: ExportConfig) -> ArtifactDraft:
    return ArtifactDraft(
        spec=file.spec,
        max_owners=options.max_draft_owners,
        source=Source(name=file.path.name, sha256=file.sha256),
    )


def _describe_files(folder: Path) -> Mapping[str, FileEntry]:
    return {
        file.relative_to(folder).as_posix(): FileEntry(
            size=file.stat().st_size, sha256=sha256_of(file)
        )
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def producing_versions() -> dict[str, str]:
    """The installed versions of the packages that shape an artifact."""
    versions = {}
    for name in PRODUCERS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
