"""From modules that XNNPACK runs to one ExecuTorch program with the XNNPACK delegate.

Attention lies between delegates, so a model of n layers has n + 1 segments: what
comes before the first attention, what lies between two, what follows the last.
Lowering retraces a segment dozens of times, and the segments of most models
differ in their weights alone. So one segment of each kind is lowered; for the
others the lowered form is copied and its weights, which XNNPACK finds by the
SHA-256 of their bytes, are exchanged for their own.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, tag_as_implicit_q_dq
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn

from astrai_cli.errors import ExecutionError
from astrai_cli.models.decoder import split_heads
from astrai_cli.models.spec import ModelSpec
from backends.cpu.operators import embed, rotate, update_and_attend

# Any count but 0 and 1, which tracing would bake in.
_EXAMPLE_ROWS = 5


def _row_count(name: str, most: int) -> torch.export.Dim:
    """A dimension of 1 … most rows; the example's are always possible."""
    return torch.export.Dim(name, min=1, max=max(most, _EXAMPLE_ROWS))


def _edge_config() -> EdgeCompileConfig:
    """A new one for each use: lowering adds to the list of operators to preserve."""
    return EdgeCompileConfig(
        # Quantized operators are none of the core ATen set that the check knows.
        _check_ir_validity=False,
        preserve_ops=[torch.ops.aten.linear.default],
    )


@dataclass(frozen=True, slots=True)
class _Constants:
    """The constants of a segment: which kinds and shapes there are, and their bytes by key."""

    signature: tuple[Any, ...]
    data: dict[str, bytes]
    keys: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, segment: nn.Module) -> _Constants:
        tensors = {**dict(segment.named_parameters()), **dict(segment.named_buffers())}
        signature = tuple((name, t.dtype, tuple(t.shape)) for name, t in tensors.items())
        data = {_key(name, t): _bytes(t) for name, t in tensors.items()}
        keys = tuple((name, _key(name, t)) for name, t in tensors.items())
        return cls(signature, data, keys)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def _key(name: str, tensor: Tensor) -> str:
    """The key under which XNNPACK's lowering stores a constant."""
    digest = hashlib.sha256(_bytes(tensor)).hexdigest()
    return f"scale_{digest}" if name.endswith(".scales") else digest


class SegmentLowering:
    """Lowers segments, each kind once."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lowered: dict[tuple[Any, ...], tuple[LoweredBackendModule, _Constants]] = {}

    def lower(self, segment: nn.Module, widths: Sequence[int]) -> LoweredBackendModule:
        """A segment that takes float32 inputs [rows, width], as one XNNPACK delegate."""
        constants = _Constants.of(segment)
        signature = (type(segment), *constants.signature)
        if signature in self._lowered:
            copy = _exchange(*self._lowered[signature], constants)
            if copy is not None:
                return copy
        lowered = self._lower(segment, widths)
        self._lowered.setdefault(signature, (lowered, constants))
        return lowered

    def _lower(self, segment: nn.Module, widths: Sequence[int]) -> LoweredBackendModule:
        edge = self._trace(segment, widths)
        for node in edge.graph.nodes:
            if is_dequant(node):
                # Linear maps take the rounded values themselves, which those with a bias must know.
                tag_as_implicit_q_dq(node)
        # The whole segment is given to the delegate; what it cannot run, it refuses.
        result = XnnpackBackend.preprocess(copy.deepcopy(edge), [])
        outputs = [node.meta["val"].shape[1] for node in edge.graph.output_node().args[0]]
        return LoweredBackendModule(
            self._trace(_StandIn(outputs), widths),
            XnnpackBackend.__name__,
            result.processed_bytes,
            [],
            result.data_store_output,
        )

    def _trace(self, segment: nn.Module, widths: Sequence[int]) -> torch.export.ExportedProgram:
        rows = _row_count("rows", self._max_rows)
        example = tuple(torch.zeros(_EXAMPLE_ROWS, width) for width in widths)
        # One entry for `*inputs` of a stand-in, one for each input of others.
        shapes: tuple[Any, ...] = ({0: rows},) * len(example)
        exported = torch.export.export(
            segment,
            example,
            dynamic_shapes=(shapes,) if isinstance(segment, _StandIn) else shapes,
            strict=False,
        )
        edge: torch.export.ExportedProgram
        edge = to_edge(exported, compile_config=_edge_config()).exported_program()
        return edge


class _StandIn(nn.Module):
    """Has the shapes of a lowered segment, and next to nothing to trace.

    The program around a segment is traced dozens of times, and the segment with it.
    """

    def __init__(self, outputs: Sequence[int]) -> None:
        """outputs: the widths of what the segment gives."""
        super().__init__()
        self._outputs = tuple(outputs)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = tuple(inputs[0][:, :1].repeat(1, width) for width in self._outputs)
        return outputs if len(outputs) > 1 else outputs[0]


def _exchange(
    lowered: LoweredBackendModule, old: _Constants, new: _Constants
) -> LoweredBackendModule | None:
    """`lowered` with the constants `new` in the place of `old`.

    None where that cannot be told: two constants that were equal in the old are
    not in the new, or lowering stored one that is not known by its bytes.
    """
    stored = lowered.named_data_store_output
    assert stored is not None
    renamed: dict[str, str] = {}
    for (_, was), (_, becomes) in zip(old.keys, new.keys, strict=True):
        if renamed.setdefault(was, becomes) != becomes:
            return None
    store = NamedDataStore()
    blob = lowered.processed_bytes
    for key, entry in stored.pte_data.items():
        if key not in renamed:
            return None
        blob = blob.replace(key.encode(), _placeholder(key))
        store.add_named_data(renamed[key], new.data[renamed[key]], entry.alignment)
    for was, becomes in renamed.items():
        blob = blob.replace(_placeholder(was), becomes.encode())
    return LoweredBackendModule(
        lowered.original_module,
        lowered.backend_id,
        blob,
        lowered.compile_specs,
        store.get_named_data_store_output(),
    )


def _placeholder(key: str) -> bytes:
    """A stand-in as long as the key, so that one exchange cannot hit another's result."""
    return key.encode().translate(bytes.maketrans(b"0123456789abcdef", b"GHIJKLMNOPQRSTUV"))


class Program(nn.Module):
    """forward(tokens int32 [T], positions int64 [T], rows int64 [R]) -> logits float32 [R, vocab].

    The segments with the operators of `backends.cpu.operators` between them. Keys and
    values lie behind the neutral operator; after the last attention only the wanted
    rows go on.
    """

    table: Tensor
    scales: Tensor
    frequencies: Tensor

    def __init__(
        self,
        spec: ModelSpec,
        embedding: tuple[Tensor, Tensor],
        frequencies: Tensor,
        segments: Sequence[nn.Module],
        taps: Sequence[int] = (),
    ) -> None:
        """taps: layers, not the last, whose outputs [T, taps * width] are given too."""
        super().__init__()
        self._spec = spec
        self._taps = tuple(taps)
        self.register_buffer("table", embedding[0])
        self.register_buffer("scales", embedding[1])
        self.register_buffer("frequencies", frequencies)
        self.segments = nn.ModuleList(segments)

    def forward(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        angles = positions.to(torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        h = embed(tokens, self.table, self.scales)
        first, *middle, last = self.segments
        q, k, v, *gate = first(h)
        tapped = []
        for layer in range(self._spec.n_layers):
            q, k, v = (split_heads(x, self._spec.head_width) for x in (q, k, v))
            if self._spec.rotates(layer):
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            attended = update_and_attend(
                q,
                k,
                v,
                positions[:, None],
                layer,
                self._spec.attention_scale,
                torch.float32,
            ).view(-1, self._spec.n_heads * self._spec.head_width)
            if layer < self._spec.n_layers - 1:
                q, k, v, h, *gate = middle[layer](attended, h, *gate)
                if layer in self._taps:
                    tapped.append(h)
        logits: Tensor = last(*(x.index_select(0, rows) for x in (attended, h, *gate)))
        return (logits, torch.cat(tapped, dim=1)) if tapped else (logits,)


def export_step(program: Program, max_rows: int) -> torch.export.ExportedProgram:
    """The method of a program whose segments are lowered."""
    tokens, rows = _row_count("tokens", max_rows), _row_count("rows", max_rows)
    example = (
        torch.zeros(_EXAMPLE_ROWS, dtype=torch.int32),
        torch.zeros(_EXAMPLE_ROWS, dtype=torch.int64),
        torch.zeros(_EXAMPLE_ROWS - 1, dtype=torch.int64),
    )
    return torch.export.export(
        program, example, dynamic_shapes=({0: tokens}, {0: tokens}, {0: rows}), strict=False
    )


def export_rows(module: nn.Module, width: int, max_rows: int) -> torch.export.ExportedProgram:
    """A method of rows [T, width] and their positions [T]; its segments are lowered."""
    rows = _row_count("tokens", max_rows)
    example = (
        torch.zeros(_EXAMPLE_ROWS, width),
        torch.zeros(_EXAMPLE_ROWS, dtype=torch.int64),
    )
    return torch.export.export(module, example, dynamic_shapes=({0: rows}, {0: rows}), strict=False)


class _Method(nn.Module):
    """Gives modules of any signature one that tracing can describe."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Tensor) -> Any:
        return self.body(*inputs)


def write_methods(
    path: Path, methods: Mapping[str, tuple[nn.Module, Sequence[int]]], max_rows: int
) -> None:
    """Write the `.pte` of methods that map rows: each with the widths of its inputs [rows, width].

    Their segments are lowered. Raises ExecutionError.
    """
    exported = {}
    for name, (module, widths) in methods.items():
        example = tuple(torch.zeros(_EXAMPLE_ROWS, width) for width in widths)
        rows = _row_count("rows", max_rows)
        exported[name] = torch.export.export(
            _Method(module), example, dynamic_shapes=(({0: rows},) * len(example),), strict=False
        )
    write_exported(path, exported)


def write_exported(path: Path, methods: Mapping[str, torch.export.ExportedProgram]) -> None:
    """Write the `.pte` of exported methods by their names. Raises ExecutionError."""
    executorch = to_edge(dict(methods), compile_config=_edge_config()).to_executorch(
        ExecutorchBackendConfig()
    )
    try:
        with path.open("wb") as file:
            executorch.write_to_file(file)
    except OSError as error:
        raise ExecutionError(f"{path.name} cannot be written: {error.strerror}") from error
