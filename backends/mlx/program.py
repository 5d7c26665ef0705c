"""A model as a `.pte` for apps on the device, lowered with ExecuTorch's MLX partitioner.

Keys and values are off the graph, behind ExecuTorch's neutral operator; the app owns them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.backends.mlx.partitioner import MLXPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.extension.llm.cache.update_and_attend import update_and_attend
from gguf import GGMLQuantizationType
from torch import Tensor, nn
from torchao.quantization.quant_primitives import dequantize_affine

from astrai_cli.config import ExportConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.decoder import Decoder
from astrai_cli.models.source import open_source, open_vision
from astrai_cli.models.weights import TensorSource, Weights
from backends.affine import GROUP, AffineRows, is_exact, repack, round_rows
from backends.base import Progress

PROGRAM_NAME = "model.pte"
_FLOATS = frozenset({"F32", "F16", "BF16"})
# No size of an example may be one that tracing takes for a constant.
_EXAMPLE_ROWS = 5


class _AffineMatrix(nn.Module):
    """A matrix [out, in] in the form that the partitioner knows: scale * (integer - zero)."""

    integers: Tensor
    scales: Tensor
    zeros: Tensor

    def __init__(self, rows: AffineRows, dtype: torch.dtype) -> None:
        super().__init__()
        self.bits = rows.bits
        offset = 2 ** (self.bits - 1)
        # A group of equal values has the scale 0, and any other does as well.
        constant = rows.scales == 0
        scales = np.where(constant, np.float32(1), rows.scales)
        integers = np.where(constant.repeat(GROUP, axis=1), np.uint8(0), rows.integers)
        zeros = -rows.biases / scales - offset
        signed = (integers.astype(np.int16) - offset).astype(np.int8)
        self.register_buffer("integers", torch.from_numpy(signed))
        self.register_buffer("scales", torch.from_numpy(scales).to(dtype))
        self.register_buffer("zeros", torch.from_numpy(zeros).to(dtype))

    def dequantized(self) -> Tensor:
        most = 2 ** (self.bits - 1)
        values: Tensor = dequantize_affine(
            self.integers,
            (1, GROUP),
            self.scales,
            self.zeros,
            torch.int8,
            -most,
            most - 1,
            output_dtype=self.scales.dtype,
        )
        return values


class _Linear(_AffineMatrix):
    bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.dequantized(), self.bias)


class _Embedding(_AffineMatrix):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.dequantized())


class _Forward(nn.Module):
    """forward(tokens int32 [T], positions int64 [T], rows int64 [R]) -> logits [R, vocabulary]."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype) -> None:
        super().__init__()
        self.decoder = decoder
        self.dtype = dtype

    def forward(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        scale = self.decoder.spec.attention_scale

        def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, layer: int) -> Tensor:
            # They were rotated in float32.
            q, k = q.to(self.dtype), k.to(self.dtype)
            attended: Tensor = update_and_attend(q, k, v, positions, layer, scale, self.dtype)
            return attended

        h = self.decoder.embed(tokens)
        logits: Tensor = self.decoder(h, positions, rows, attend)
        return logits


def export_program(
    source: Path, target: Path, options: ExportConfig, progress: Progress
) -> dict[str, Any]:
    """Write `model.pte` into the folder `target`; what the manifest notes about it.

    Memory: a byte for each quantized weight, and what lowering adds. Raises ModelFileError,
    and InvalidInputError for a model with a vision tower or a draft.
    """
    name = options.activation_dtype or "float16"
    dtype: torch.dtype = getattr(torch, name)
    if options.draft_gguf is not None:
        raise InvalidInputError("--format pte has no place for a draft", param="draft_gguf")
    with open_source(source) as model, open_vision(model, options.mmproj) as tower:
        if tower is not None:
            raise InvalidInputError("--format pte has no place for a vision tower", param="format")
        progress("reading the weights", 0.1)
        forward = _Forward(_load(model.weights, dtype), dtype).eval()
    progress("lowering the program", 0.3)
    _write(forward, target / PROGRAM_NAME, options.max_prefill_chunk)
    return {"activation_dtype": name, "program": PROGRAM_NAME, "methods": ["forward"]}


def _write(forward: _Forward, path: Path, max_rows: int) -> None:
    most = max(max_rows, _EXAMPLE_ROWS)
    tokens, rows = (torch.export.Dim(name, min=1, max=most) for name in ("tokens", "rows"))
    example = (
        torch.zeros(_EXAMPLE_ROWS, dtype=torch.int32),
        torch.zeros(_EXAMPLE_ROWS, dtype=torch.int64),
        torch.zeros(_EXAMPLE_ROWS - 1, dtype=torch.int64),
    )
    with torch.no_grad():
        exported = torch.export.export(
            forward, example, dynamic_shapes=({0: tokens}, {0: tokens}, {0: rows}), strict=False
        )
    lowered = to_edge_transform_and_lower(
        exported,
        partitioner=[MLXPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    with path.open("wb") as file:
        lowered.to_executorch().write_to_file(file)


def _load(weights: TensorSource, dtype: torch.dtype) -> Decoder:
    spec = weights.spec
    with torch.device("meta"):
        decoder = Decoder(spec)
    for name, module in list(decoder.named_modules()):
        if isinstance(module, nn.Linear | nn.Embedding):
            source = "token_embd" if name == "output" and spec.tied_head else name
            rows = _packed(weights, f"{source}.weight")
            if rows is not None:
                kind = _Linear if isinstance(module, nn.Linear) else _Embedding
                decoder.set_submodule(name, kind(rows, dtype))
    for name, module in list(decoder.named_modules()):
        for part, _ in list(module.named_parameters(recurse=False)):
            source = "token_embd" if name == "output" and spec.tied_head else name
            values = torch.from_numpy(weights.get(f"{source}.{part}")).to(dtype)
            setattr(module, part, nn.Parameter(values, requires_grad=False))
    return decoder


def _packed(weights: TensorSource, name: str) -> AffineRows | None:
    """A matrix that stays quantized; None for one of floats."""
    if not isinstance(weights, Weights) or weights.type_name(name) in _FLOATS:
        return None
    kind = GGMLQuantizationType[weights.type_name(name)]
    if is_exact(kind):
        return repack(weights.raw(name), kind)
    return round_rows(weights.get(name), np.copy)
