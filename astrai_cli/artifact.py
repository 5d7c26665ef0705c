"""An exported model on disk: a folder with a manifest, written whole or not at all."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tokenizers import Tokenizer

from astrai_cli.config import ExportConfig
from astrai_cli.config.speculation import DraftBounds
from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.files import partial_folder, sha256_of, sync, sync_folder
from astrai_cli.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    ArtifactDraft,
    ArtifactLimits,
    ArtifactVision,
    FileEntry,
    Manifest,
    Source,
    read_manifest,
)
from astrai_cli.models.draft_spec import DraftFile, open_draft
from astrai_cli.models.source import open_source, open_vision
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.vision_spec import VisionSpec
from backends.base import (
    EXPORTED_CELLS,
    EXPORTED_VISION_PATCHES,
    Progress,
    context_limit,
    vision_patch_limit,
)
from backends.registry import check_options, get_backend

log = logging.getLogger(__name__)

TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
PRODUCERS = ("astrai", "torch", "executorch", "mlx")


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
        manifest = read_manifest(path)
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
            _check_draft_bounds(options, spec)
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


def _check_draft_bounds(options: ExportConfig, spec: ModelSpec) -> None:
    """A draft has the cells of one context at least, as long as it is by default."""
    if options.draft_gguf is None:
        for name in DraftBounds.model_fields:
            if name in options.model_fields_set and (bound := getattr(options, name)) is not None:
                raise InvalidInputError(
                    f"{name} is {bound}, but there is no draft_gguf", param=name
                )
        return
    cells = options.draft_max_cells
    if cells is None:
        return
    context = context_limit(spec, None)
    most = options.max_cells or EXPORTED_CELLS
    if cells <= context:
        problem = f"one context of {context} cells, and one for padded writes, need {context + 1}"
    elif cells > most:
        problem = f"max_cells is {most}, and a draft has no cells beside the model's"
    else:
        return
    raise InvalidInputError(f"draft_max_cells is {cells}, but {problem}", param="draft_max_cells")


def _describe_draft(file: DraftFile, options: ExportConfig) -> ArtifactDraft:
    return ArtifactDraft(
        spec=file.spec,
        max_owners=options.max_draft_owners,
        max_cells=options.draft_max_cells,
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
