"""A model file as a folder that mlx-lm loads, written a few rows at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from astrai_cli.config import ExportConfig
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.hf import CONFIG_NAME, INDEX_NAME, WEIGHTS_NAME
from astrai_cli.models.source import ModelSource, open_source, open_vision
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.weights import Weights
from backends.affine import GROUP, bits_of, is_exact, repack, round_rows
from backends.artifact_draft import write_draft
from backends.artifact_vision import write_tower
from backends.base import Progress
from backends.mlx.architecture import MlxModel, MlxTensor, describe
from backends.numbers import NUMBER_TYPES, NumberType
from backends.shards import (
    PlannedTensor,
    ShardWriter,
    row_ranges,
    shard_index,
    split_into_shards,
)

_FLOATS = frozenset({GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16})
_METADATA = {"format": "mlx"}

Floats = NDArray[np.float32]


@dataclass
class _Tally:
    """What became of the matrices of one stored type: squares, where they were rounded."""

    bits: int
    tensors: int = 0
    difference: float = 0.0
    magnitude: float = 0.0

    def add(self, actual: Floats, expected: Floats) -> None:
        self.difference += float(np.square(actual - expected, dtype=np.float64).sum())
        self.magnitude += float(np.square(expected, dtype=np.float64).sum())

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"bits": self.bits, "tensors": self.tensors}
        if self.magnitude:
            told["relative_error"] = math.sqrt(self.difference / self.magnitude)
        return told


class WeightExporter:
    """Writes the text model's tensors; memory: some rows of a matrix, whatever its size."""

    def __init__(
        self, source: ModelSource, model: MlxModel, numbers: NumberType, progress: Progress
    ) -> None:
        self._weights = source.weights
        self._model = model
        self._numbers = numbers
        self._progress = progress
        self._tallies: dict[str, _Tally] = {}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write shards and their index; by stored type, what its matrices became."""
        plans = [self._plan(tensor) for tensor in self._model.tensors]
        plans += [[self._floats(name, (length,))] for name, length in self._model.zeros.items()]
        shards = split_into_shards(plans)
        names = _shard_names(len(shards))
        sources = {tensor.name: tensor for tensor in self._model.tensors}
        done, total = 0, len(plans)
        for name, shard in zip(names, shards, strict=True):
            with ShardWriter(folder / name, shard, _METADATA) as writer:
                for planned in shard:
                    if (tensor := sources.get(planned.name)) is not None:
                        self._progress(_describe(tensor, self._weights.spec), 0.9 * done / total)
                        self._write(writer, tensor)
                        done += 1
        if len(shards) > 1:
            index = shard_index(dict(zip(names, shards, strict=True)))
            write_json(folder / INDEX_NAME, index)
        return {kind: tally.as_dict() for kind, tally in self._tallies.items()}

    def quantization(self) -> dict[str, Any]:
        """mlx-lm's entry of that name: the format of each packed module."""
        packed = {
            tensor.module: {"group_size": GROUP, "bits": bits_of(kind)}
            for tensor in self._model.tensors
            if (kind := self._packed_kind(tensor)) is not None
        }
        if not packed:
            return {}
        usual = max(map(_bits, packed.values()), key=[*map(_bits, packed.values())].count)
        return {"quantization": {"group_size": GROUP, "bits": usual, **packed}}

    def _packed_kind(self, tensor: MlxTensor) -> GGMLQuantizationType | None:
        """The stored type of a matrix that stays quantized; None for what becomes floats."""
        weights = self._weights
        if not isinstance(weights, Weights) or len(weights.shapes[tensor.source]) != 2:
            return None
        kind = GGMLQuantizationType[weights.type_name(tensor.source)]
        return None if kind in _FLOATS else kind

    def _floats(self, name: str, shape: tuple[int, ...]) -> PlannedTensor:
        return PlannedTensor(name, self._numbers.kind, shape)

    def _plan(self, tensor: MlxTensor) -> list[PlannedTensor]:
        shape = self._weights.shapes[tensor.source]
        kind = self._packed_kind(tensor)
        if kind is None:
            return [self._floats(tensor.name, shape)]
        rows, columns = shape
        packed = PlannedTensor(tensor.name, "U32", (rows, columns * bits_of(kind) // 32))
        groups = (rows, columns // GROUP)
        names = [f"{tensor.module}.{part}" for part in ("scales", "biases")]
        return [packed, *(self._floats(name, groups) for name in names)]

    def _write(self, writer: ShardWriter, tensor: MlxTensor) -> None:
        kind = self._packed_kind(tensor)
        shape = self._weights.shapes[tensor.source]
        if len(shape) == 1:
            values = self._weights.get(tensor.source) + np.float32(tensor.offset)
            writer.write(tensor.name, 0, self._numbers.encode(values, tensor.source))
            return
        for part in row_ranges(*shape):
            if kind is None:
                values = self._weights.get_rows(tensor.source, np.arange(part.start, part.stop))
                encoded = self._numbers.encode(values, tensor.source)
                writer.write(tensor.name, part.start, encoded)
            else:
                self._write_packed(writer, tensor, kind, part)

    def _write_packed(
        self, writer: ShardWriter, tensor: MlxTensor, kind: GGMLQuantizationType, part: slice
    ) -> None:
        assert isinstance(self._weights, Weights)
        tally = self._tallies.setdefault(kind.name, _Tally(bits_of(kind)))
        tally.tensors += part.start == 0
        if is_exact(kind):
            rows = repack(self._weights.raw(tensor.source)[part], kind)
        else:
            expected = self._weights.get_rows(tensor.source, np.arange(part.start, part.stop))
            rows = round_rows(expected, self._numbers.rounded)
            tally.add(rows.values(), expected)
        writer.write(tensor.name, part.start, rows.packed())
        for name, values in (("scales", rows.scales), ("biases", rows.biases)):
            encoded = self._numbers.encode(values, tensor.source)
            writer.write(f"{tensor.module}.{name}", part.start, encoded)


def export_model(
    source: Path, target: Path, options: ExportConfig, progress: Progress
) -> dict[str, Any]:
    """Write the files of mlx-lm, and those of the vision tower, into the folder `target`.

    Returns what the manifest notes about them: the number type, and for each quantized type
    of the source the bits its matrices have now, and what rounding cost them.
    Raises ModelFileError, InvalidInputError.
    """
    numbers = NUMBER_TYPES[options.activation_dtype or "float16"]
    with (
        open_source(source) as model,
        open_vision(model, options.mmproj) as tower,
        open_draft(model, options.draft_gguf) as draft,
    ):
        described = describe(model.weights)
        exporter = WeightExporter(model, described, numbers, progress)
        tokens = model.special_tokens()
        config = {**described.config, "torch_dtype": numbers.name, **exporter.quantization()}
        write_json(target / CONFIG_NAME, config | _token_ids(tokens))
        write_json(target / "tokenizer_config.json", _tokenizer_config(model, tokens))
        details = {"activation_dtype": numbers.name, "weights": exporter.write(target)}
        if tower is not None:
            progress("writing the vision tower", 0.9)
            write_tower(tower, target, numbers, _METADATA)
        if draft is not None:
            progress("writing the draft", 0.95)
            write_draft(draft, target, numbers, _METADATA)
    return details


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _describe(tensor: MlxTensor, spec: ModelSpec) -> str:
    if not tensor.source.startswith("blk."):
        return "writing embedding and head"
    return f"writing layer {int(tensor.source.split('.')[1]) + 1} of {spec.n_layers}"


def _bits(format_: dict[str, int]) -> int:
    return format_["bits"]


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS_NAME]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _token_ids(tokens: SpecialTokens) -> dict[str, Any]:
    ends: Sequence[int] = tokens.eos
    bos = {} if tokens.bos is None else {"bos_token_id": tokens.bos}
    return {**bos, "eos_token_id": list(ends)}


def _tokenizer_config(model: ModelSource, tokens: SpecialTokens) -> dict[str, Any]:
    """What transformers needs beside `tokenizer.json` and the template's file."""
    tokenizer = model.tokenizer()
    named = {"bos_token": tokens.bos, "eos_token": tokens.eos[0]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.spec.context_length,
        **{
            name: tokenizer.id_to_token(token) for name, token in named.items() if token is not None
        },
    }
