"""What artifacts of several backends share about their block drafts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, InvalidInputError, ModelFileError
from astrai_cli.files import sha256_of
from astrai_cli.manifest import ArtifactDraft, draft_export_command
from astrai_cli.models.draft_spec import DraftFile, draft_tensors
from backends.numbers import NumberType
from backends.shards import PlannedTensor, ShardWriter

DRAFT_NAME = "draft.safetensors"


def draft_to_open(artifact: Artifact, limits: LimitsConfig) -> ArtifactDraft | None:
    """The draft that an executor of the artifact has to load; None where none is asked for.

    Raises ArtifactError where dflash is on and the artifact has no draft, InvalidInputError
    for a draft file that is not the one it was exported with, and ModelFileError for one
    that cannot be read.
    """
    draft, named = artifact.manifest.draft, limits.draft_gguf
    command = draft_export_command(artifact.path, artifact.manifest.backend, named)
    if named is not None:
        try:
            is_own = draft is not None and sha256_of(named) == draft.source.sha256
        except OSError as error:
            raise ModelFileError(f"{named}: {error.strerror or error}") from error
        if not is_own:
            has = "no block draft" if draft is None else f"a draft that is not {named.name}"
            raise InvalidInputError(
                f"{artifact.path} has {has}; export {artifact.manifest.source.name} again: "
                f"{command}",
                param="draft_gguf",
            )
    if not limits.dflash:
        return None
    if draft is None:
        raise ArtifactError(
            f"{artifact.path} was exported without a block draft; export "
            f"{artifact.manifest.source.name} again: {command}"
        )
    return draft


def write_draft(
    draft: DraftFile, target: Path, numbers: NumberType, metadata: Mapping[str, str]
) -> None:
    """Write a draft's tensors into an artifact, all of one number type, under GGUF's names."""
    shapes = draft_tensors(draft.spec)
    planned = [PlannedTensor(name, numbers.kind, shape) for name, shape in shapes.items()]
    with ShardWriter(target / DRAFT_NAME, planned, metadata) as writer:
        for name in shapes:
            writer.write(name, 0, numbers.encode(draft.get(name), name))
