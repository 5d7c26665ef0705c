"""What artifacts of several backends share about their vision towers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError, ModelFileError
from astrai_cli.files import sha256_of
from astrai_cli.models.source import VisionSource
from astrai_cli.models.vision_spec import POSITION_TABLE, VisionSpec, vision_tensors
from backends.base import vision_patch_limit
from backends.numbers import NumberType
from backends.shards import PlannedTensor, ShardWriter

POSITIONS_NAME = "pos_embed.bin"
VISION_NAME = "vision.safetensors"

Rows = NDArray[np.float32]


def check_tower(artifact: Artifact, mmproj: Path | None) -> None:
    """A tower file may be named only where the artifact was exported with that very file.

    Raises InvalidInputError, and ModelFileError where the file cannot be read.
    """
    if mmproj is None:
        return
    vision = artifact.manifest.vision
    own = None if vision is None else vision.mmproj
    try:
        if own is not None and sha256_of(mmproj) == own.sha256:
            return
    except OSError as error:
        raise ModelFileError(f"{mmproj}: {error.strerror or error}") from error
    has = "no vision tower" if vision is None else f"a vision tower that is not {mmproj.name}"
    raise InvalidInputError(
        f"{artifact.path} has {has}: export the model with --mmproj {mmproj}", param="mmproj"
    )


def max_patches(artifact: Artifact, limits: LimitsConfig) -> int:
    """Patches an image may have: by the limits, but never more than by the artifact."""
    vision = artifact.manifest.vision
    if vision is None:
        return 0
    return min(vision_patch_limit(limits.max_vision_patches), vision.max_patches)


def write_tower(
    tower: VisionSource, target: Path, numbers: NumberType, metadata: Mapping[str, str]
) -> None:
    """Write a tower's tensors, all of one number type, under GGUF's names, and its positions."""
    shapes = vision_tensors(tower.spec)
    del shapes[POSITION_TABLE]
    planned = [PlannedTensor(name, numbers.kind, shape) for name, shape in shapes.items()]
    with ShardWriter(target / VISION_NAME, planned, metadata) as writer:
        for name in shapes:
            writer.write(name, 0, numbers.encode(tower.get(name), name))
    write_positions(target, tower.get(POSITION_TABLE))


def write_positions(folder: Path, table: Rows) -> None:
    """Write a tower's table of learnt positions [side², width] into an artifact.

    Raises ExecutionError.
    """
    try:
        table.astype("<f4").tofile(folder / POSITIONS_NAME)
    except OSError as error:
        raise ExecutionError(f"{POSITIONS_NAME} cannot be written: {error.strerror}") from error


def read_positions(folder: Path, spec: VisionSpec) -> Rows:
    """The table [side², width] of an artifact. Raises ArtifactError."""
    path = folder / POSITIONS_NAME
    try:
        table = np.fromfile(path, dtype="<f4").astype(np.float32, copy=False)
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}") from error
    if table.size != spec.grid_side**2 * spec.width:
        raise ArtifactError(
            f"{path} holds {table.size} numbers, must hold {spec.grid_side**2 * spec.width}"
        )
    return table.reshape(-1, spec.width)
