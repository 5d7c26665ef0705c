"""A model file as tensors that the executor maps and uses as they are.

A matrix that GGUF stores in blocks keeps their numbers: `NAME.weight` holds its integers,
uint8 [out, in * bits / 8], two of 4 bits in a byte with the first one low. `NAME.scales` and
`NAME.biases` hold [out, groups] each, in float16; or, where scales are nested, int8 factors of
the float16 `NAME.units` [out, in / SUPERBLOCK, 2]. What has other blocks, and what is not
quantized, is of one number type. Names are GGUF's; a tied head is not written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from astrai_cli.config import ExportConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.architectures import ROPE_FACTORS
from astrai_cli.models.draft_spec import open_draft
from astrai_cli.models.source import open_source, open_vision
from astrai_cli.models.weights import TensorSource, Weights
from backends.affine import (
    SUPERBLOCK,
    AffineRows,
    exact_group,
    has_nested_scales,
    nested_scales,
    repack,
)
from backends.artifact_draft import write_draft
from backends.artifact_vision import write_tower
from backends.base import EXPORTED_CELLS, EXPORTED_STEP_TOKENS, Progress
from backends.numbers import NUMBER_TYPES, NumberType
from backends.shards import PlannedTensor, ShardWriter, row_ranges, split_into_shards

SHARD_PATTERN = "model-*.safetensors"
_HALF = NUMBER_TYPES["float16"]
_METADATA = {"format": "pt"}


class WeightWriter:
    """Writes the text model's tensors; memory: some rows of a matrix, whatever its size."""

    def __init__(self, weights: TensorSource, numbers: NumberType, progress: Progress) -> None:
        self._weights = weights
        self._numbers = numbers
        self._progress = progress
        self._kinds: Counter[str] = Counter()

    def write(self, folder: Path) -> dict[str, int]:
        """Write the shards; how many matrices are stored in each way."""
        # The factors of rotation are in the spec.
        plans = {name: self._plan(name) for name in self._weights.shapes if name != ROPE_FACTORS}
        names = {plan[0].name: name for name, plan in plans.items()}
        done = 0
        for number, shard in enumerate(split_into_shards([*plans.values()]), start=1):
            with ShardWriter(folder / f"model-{number:05}.safetensors", shard, _METADATA) as writer:
                for planned in shard:
                    if planned.name in names:
                        self._progress(f"writing {planned.name}", 0.9 * done / len(plans))
                        self._write(writer, names[planned.name])
                        done += 1
        return dict(self._kinds)

    def _packed_kind(self, name: str) -> GGMLQuantizationType | None:
        """The stored type of a matrix whose blocks are kept; None for what becomes numbers."""
        weights = self._weights
        if not isinstance(weights, Weights) or len(weights.shapes[name]) != 2:
            return None
        kind = GGMLQuantizationType[weights.type_name(name)]
        return None if exact_group(kind) is None else kind

    def _plan(self, name: str) -> list[PlannedTensor]:
        shape = self._weights.shapes[name]
        kind = self._packed_kind(name)
        if kind is None:
            self._kinds[self._numbers.name] += len(shape) == 2
            return [PlannedTensor(name, self._numbers.kind, shape)]
        self._kinds[kind.name] += 1
        out, width = shape
        group = exact_group(kind)
        assert group is not None
        scales, biases, units = _parts(name)
        is_nested = has_nested_scales(kind)
        scale_kind = "I8" if is_nested else _HALF.kind
        planned = [
            PlannedTensor(name, "U8", (out, width * _stored_bits(kind) // 8)),
            PlannedTensor(scales, scale_kind, (out, width // group)),
            PlannedTensor(biases, scale_kind, (out, width // group)),
        ]
        if is_nested:
            planned.append(PlannedTensor(units, _HALF.kind, (out, width // SUPERBLOCK, 2)))
        return planned

    def _write(self, writer: ShardWriter, name: str) -> None:
        shape = self._weights.shapes[name]
        if len(shape) == 1:
            writer.write(name, 0, self._numbers.encode(self._weights.get(name), name))
            return
        kind = self._packed_kind(name)
        for rows in row_ranges(*shape):
            if kind is None:
                values = self._weights.get_rows(name, np.arange(rows.start, rows.stop))
                writer.write(name, rows.start, self._numbers.encode(values, name))
            else:
                self._write_packed(writer, name, kind, rows)

    def _write_packed(
        self, writer: ShardWriter, name: str, kind: GGMLQuantizationType, rows: slice
    ) -> None:
        assert isinstance(self._weights, Weights)
        blocks = self._weights.raw(name)[rows]
        affine = repack(blocks, kind)
        writer.write(name, rows.start, _pack(affine, _stored_bits(kind)))
        scales, biases, units = _parts(name)
        if not has_nested_scales(kind):
            writer.write(scales, rows.start, _HALF.encode(affine.scales, name))
            writer.write(biases, rows.start, _HALF.encode(affine.biases, name))
            return
        nested = nested_scales(blocks, kind)
        writer.write(scales, rows.start, nested.factors[:, 0])
        writer.write(biases, rows.start, nested.factors[:, 1])
        writer.write(units, rows.start, _HALF.encode(nested.units, name))


def export_model(
    source: Path, target: Path, options: ExportConfig, progress: Progress
) -> dict[str, Any]:
    """Write the tensors of the model, the vision tower and the draft into the folder `target`.

    Returns what the manifest notes: the number type, how matrices are stored, and the bounds.
    Raises ModelFileError, and InvalidInputError for bounds that leave no step to run.
    """
    numbers = NUMBER_TYPES[options.activation_dtype or "bfloat16"]
    bounds = _bounds(options)
    with (
        open_source(source) as model,
        open_vision(model, options.mmproj) as tower,
        open_draft(model, options.draft_gguf) as draft,
    ):
        stored = WeightWriter(model.weights, numbers, progress).write(target)
        if tower is not None:
            progress("writing the vision tower", 0.9)
            write_tower(tower, target, numbers, _METADATA)
        if draft is not None:
            progress("writing the draft", 0.95)
            write_draft(draft, target, numbers, _METADATA)
    return {"activation_dtype": numbers.name, "weights": stored, **bounds}


def _bounds(options: ExportConfig) -> dict[str, Any]:
    most = options.max_step_tokens or EXPORTED_STEP_TOKENS
    sizes = sorted({*options.forward_sizes})
    if sizes[-1] > most:
        raise InvalidInputError(
            f"forward_sizes has {sizes[-1]}, over the {most} of max_step_tokens",
            param="forward_sizes",
        )
    return {
        "forward_sizes": sizes,
        "max_step_tokens": most,
        "max_cells": options.max_cells or EXPORTED_CELLS,
        "logits": options.logits,
    }


def _parts(name: str) -> Sequence[str]:
    module = name.removesuffix(".weight")
    return f"{module}.scales", f"{module}.biases", f"{module}.units"


def _stored_bits(kind: GGMLQuantizationType) -> int:
    return 4 if kind.name.startswith("Q4") else 8


def _pack(rows: AffineRows, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return rows.integers
    return rows.integers[:, ::2] | rows.integers[:, 1::2] << np.uint8(4)
