"""An artifact's tensors as modules on the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.errors import ArtifactError, ModelFileError
from astrai_cli.models.decoder import Block, Decoder
from astrai_cli.models.draft import BlockDraft
from astrai_cli.models.draft_spec import DraftSpec, draft_tensors
from astrai_cli.models.safetensors import SafetensorsFile
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.vision import VisionTower
from astrai_cli.models.vision_spec import POSITION_TABLE, VisionSpec, vision_tensors
from backends.affine import SUPERBLOCK
from backends.artifact_draft import DRAFT_NAME
from backends.artifact_vision import VISION_NAME, read_positions
from backends.cuda.decoder import DeviceBlock, Float32Head
from backends.cuda.export import SHARD_PATTERN
from backends.cuda.matrices import PackedEmbedding, PackedLinear, PackedMatrix

_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
}


class StoredTensors:
    """The tensors of some files, read one at a time."""

    def __init__(self, folder: Path, pattern: str, device: torch.device) -> None:
        """Raises ArtifactError."""
        self._folder = folder
        self._device = device
        try:
            files = [SafetensorsFile(path, _DTYPES) for path in folder.glob(pattern)]
        except ModelFileError as error:
            raise ArtifactError(str(error)) from error
        self._places = {name: file for file in files for name in file.tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """The tensor in its stored type, on the device. Raises ArtifactError."""
        file = self._places.get(name)
        if file is None:
            raise ArtifactError(f"{self._folder}: tensor {name!r} is missing")
        stored = file.tensors[name]
        if shape is not None and stored.shape != shape:
            raise ArtifactError(
                f"{file.path}: tensor {name!r} has the shape {list(stored.shape)}, "
                f"must be {list(shape)}"
            )
        values: NDArray[Any] = file.read_stored(name)
        return torch.from_numpy(values).view(_DTYPES[stored.kind]).to(self._device)

    def matrix(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """The packed matrix of that name and shape; None for one of floats."""
        module = name.removesuffix(".weight")
        if f"{module}.scales" not in self:
            return None
        parts = (name, f"{module}.scales", f"{module}.biases")
        weight, scales, biases = (self.get(part) for part in parts)
        out, columns = shape
        units = None
        if f"{module}.units" in self:
            units = self.get(f"{module}.units", (out, columns // SUPERBLOCK, 2))
        fits = (
            weight.dtype == torch.uint8
            and weight.shape in {(out, columns), (out, columns // 2)}
            and scales.shape == biases.shape
            and scales.shape in {(out, columns // 16), (out, columns // 32)}
            and (scales.dtype == torch.int8) == (units is not None)
        )
        if not fits:
            raise ArtifactError(
                f"{self._folder}: tensor {name!r} is not a packed matrix of {list(shape)}"
            )
        return PackedMatrix(weight, scales, biases, units, columns)


def load_decoder(
    folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device, *, packed: bool
) -> Decoder:
    """The decoder, computing in dtype. packed: keep packed matrices as they are stored.

    Raises ArtifactError.
    """
    stored = StoredTensors(folder, SHARD_PATTERN, device)
    with torch.device("meta"):
        decoder = Decoder(spec)
    shapes = {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}
    if spec.tied_head:
        del shapes["output.weight"]
    for name, shape in shapes.items():
        matrix = stored.matrix(name, shape) if len(shape) == 2 else None
        if matrix is None:
            _set(decoder, name, stored.get(name, shape).to(dtype))
        elif packed:
            _replace(decoder, name, matrix, dtype)
        else:
            _set(decoder, name, matrix.dequantized(dtype))
    if spec.tied_head:
        _tie_head(decoder)
    decoder.add_module("output", Float32Head(decoder.output))
    blocks = (cast(Block, block) for block in decoder.blk)
    compiled = packed and device.type == "cuda"
    decoder.blk = nn.ModuleList(DeviceBlock(block, compiled=compiled) for block in blocks)
    decoder.rope_frequencies = decoder.rope_frequencies.to(device)
    return decoder.requires_grad_(False).eval()


def load_tower(
    folder: Path, spec: VisionSpec, dtype: torch.dtype, device: torch.device
) -> VisionTower:
    """The vision tower, computing in dtype. Raises ArtifactError."""
    stored = StoredTensors(folder, VISION_NAME, device)
    with torch.device("meta"):
        tower = VisionTower(spec)
    for name, shape in vision_tensors(spec).items():
        if name == POSITION_TABLE:
            table = np.require(read_positions(folder, spec), requirements="W")
            _set(tower, name, torch.from_numpy(table))
        else:
            _set(tower, name, stored.get(name, shape).to(dtype))
    return tower.requires_grad_(False).eval()


def load_draft(
    folder: Path, spec: DraftSpec, dtype: torch.dtype, device: torch.device
) -> BlockDraft:
    """The block draft, computing in dtype. Raises ArtifactError."""
    stored = StoredTensors(folder, DRAFT_NAME, device)
    with torch.device("meta"):
        draft = BlockDraft(spec)
    for name, shape in draft_tensors(spec).items():
        _set(draft, name, stored.get(name, shape).to(dtype))
    draft.rope_frequencies = draft.rope_frequencies.to(device)
    return draft.requires_grad_(False).eval()


def _set(model: nn.Module, name: str, values: Tensor) -> None:
    module, _, parameter = name.rpartition(".")
    setattr(model.get_submodule(module), parameter, nn.Parameter(values, requires_grad=False))


def _replace(decoder: Decoder, name: str, matrix: PackedMatrix, dtype: torch.dtype) -> None:
    module = name.removesuffix(".weight")
    parent, _, own = module.rpartition(".")
    replacement: nn.Module
    if isinstance(decoder.get_submodule(module), nn.Embedding):
        replacement = PackedEmbedding(matrix, dtype)
    else:
        replacement = PackedLinear(matrix)
    setattr(decoder.get_submodule(parent), own, replacement)


def _tie_head(decoder: Decoder) -> None:
    embedding: nn.Module = decoder.token_embd
    if isinstance(embedding, PackedEmbedding):
        decoder.add_module("output", PackedLinear(embedding.matrix))
    else:
        decoder.output.weight = decoder.token_embd.weight
