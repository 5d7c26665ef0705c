"""What an artifact's `astrai.json` holds."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from astrai_cli.errors import ArtifactError
from astrai_cli.models.draft_spec import DraftSpec
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.vision_spec import VisionSpec

FORMAT_VERSION = 1
MANIFEST_NAME = "astrai.json"
MAX_MANIFEST_BYTES = 2**24


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

    max_owners: sequences that it drafts for at once. max_cells: of a cache that it is opened
    with; None: no bound of its own.
    """

    spec: DraftSpec
    max_owners: int = Field(ge=1)
    max_cells: int | None = Field(None, ge=2)
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


def read_manifest(path: Path) -> Manifest:
    """The manifest of the artifact folder `path`. Raises ArtifactError."""
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
        cure = ""
        if first["loc"][0] == "draft":
            # As of an artifact that is older than what drafts tell now.
            cure = f"; export it again: {draft_export_command(path, fields['backend'])}"
        raise ArtifactError(f"{file}: {where}: {first['msg']}{cure}") from None


def draft_export_command(path: Path, backend: str, draft: Path | None = None) -> str:
    """What exports the artifact `path` again, with a draft."""
    return (
        f"astrai export MODEL --backend {backend} --draft-gguf {draft or 'FILE'} "
        f"--output {path} --force"
    )
