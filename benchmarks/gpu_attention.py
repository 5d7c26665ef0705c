"""Attention over paged cells, by the backend's kernel and by those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gpu_subject import Subject
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from astrai_cli.models.spec import ModelSpec
from backends.base import ExecutorInfo, SequenceStep, Step
from backends.cuda import kernels
from backends.cuda.attention import CellPool
from backends.cuda.inputs import Layout, StepTensors, upload
from backends.packing import pack

# FlexAttention's blocks are of this size, and its pages must be.
_PAGE_SIZE = 128
_WORKSPACE_BYTES = 2**27

# What attends in one layer: [T, H, D].
Way = Callable[[int], Tensor]


@torch.inference_mode()
def attention(subject: Subject) -> dict[str, Any]:
    """All layers of a step of the model, by each way; one that cannot run harms no other."""
    context = subject.size.context
    shapes = {f"decode of {n}": (n, 1, context) for n in subject.size.decoded}
    shapes |= {f"prefill of {n}": (1, n, n) for n in subject.size.prompts if n >= _PAGE_SIZE}
    result: dict[str, Any] = {}
    for name, (n, count, end) in shapes.items():
        case = Case(subject, n, count, end)
        expected = case.gather()(0)
        result[name] = {way: _measured(case, make, expected) for way, make in ways(case).items()}
    return result


def ways(case: Case) -> Mapping[str, Callable[[], Way]]:
    found: dict[str, Callable[[], Way]] = {"gather": case.gather}
    if kernels.available(case.subject.device):
        found["kernel"] = case.kernel
    found["flex_attention"] = partial(by_flex_attention, case)
    if find_spec("flashinfer") is not None:
        found["flashinfer"] = partial(by_flashinfer, case)
    return found


@dataclass(frozen=True)
class Case:
    """Queries of the last `count` of `end` positions of each of n sequences, over all layers."""

    subject: Subject
    n: int
    count: int
    end: int

    @property
    def spec(self) -> ModelSpec:
        return self.subject.size.spec

    @property
    def n_pages(self) -> int:
        """Of each sequence."""
        return -(-self.end // _PAGE_SIZE)

    @cached_property
    def pages(self) -> Any:
        """In no order: int32 [n, pages]."""
        order = np.random.default_rng(0).permutation(self.n * self.n_pages)
        return order.astype(np.int32).reshape(self.n, -1)

    @cached_property
    def pool(self) -> CellPool:
        cells = self.n * self.n_pages * _PAGE_SIZE
        pool = CellPool(self.spec, cells, self.subject.size.dtype, self.subject.device)
        for each in (*pool.keys, *pool.values):
            each.normal_()
        return pool

    @cached_property
    def queries(self) -> Tensor:
        """[T, H, D]."""
        shape = (self.n * self.count, self.spec.n_heads, self.spec.head_width)
        return torch.randn(shape, device=self.subject.device).to(self.subject.size.dtype)

    @cached_property
    def layout(self) -> Layout:
        tokens = np.zeros(self.count, dtype=np.int32)
        start = self.end - self.count
        step = Step([SequenceStep(tokens, start, own) for own in self.pages], _PAGE_SIZE)
        info = ExecutorInfo(self.spec, "cuda", self.n * self.count, self.end, 0)
        packed = pack(step, info, self.pool.n_cells)
        return Layout.of(step, packed, kernels.tile_rows(self.spec))

    @cached_property
    def inputs(self) -> StepTensors:
        return StepTensors.of(upload(self.layout.integers(), self.subject.device), self.layout)

    def gather(self) -> Way:
        """PyTorch's attention over cells that are gathered; rows are in their cells already."""
        cells = self.inputs.cells
        attend = self.pool.attend_by(self.inputs, self.layout.groups, gather=True)

        def by_gathering(layer: int) -> Tensor:
            k, v = self.pool.keys[layer][cells], self.pool.values[layer][cells]
            rows = (each.unsqueeze(2) for each in (self.queries, k, v))
            return attend(*rows, self.inputs.positions, layer).squeeze(2)

        return by_gathering

    def kernel(self) -> Way:
        return lambda layer: kernels.attend(
            self.queries,
            self.pool.keys[layer],
            self.pool.values[layer],
            self.inputs,
            scale=self.spec.attention_scale,
            window=self.spec.windows[layer],
        )

    def rates(self, seconds: float) -> dict[str, Any]:
        """Of what is read, or for prompts of what is multiplied."""
        spec, subject = self.spec, self.subject
        if self.count == 1:
            n_bytes = self.n * self.end * subject.bytes_per_cell
            share = subject.of_gpu(n_bytes / seconds / subject.bandwidth)
            return {"share_of_bandwidth": share}
        seen = self.n * sum(range(self.end - self.count + 1, self.end + 1))
        operations = 4 * spec.n_layers * spec.n_heads * spec.head_width * seen
        share = subject.of_gpu(operations / seconds / subject.matrix_rate)
        return {"share_of_matrix_rate": share}


def _measured(case: Case, make: Callable[[], Way], expected: Tensor) -> dict[str, Any]:
    try:
        way = make()
        error = (way(0).float() - expected.float()).norm() / expected.float().norm()
        layers = range(case.spec.n_layers)
        seconds = case.subject.queued_seconds(lambda: [way(layer) for layer in layers])
    except Exception as failure:
        # Others' packages and compilers raise errors of their own.
        first, *_ = [*str(failure).splitlines(), ""]
        return {"failed": f"{type(failure).__name__}: {first}"}
    return {"milliseconds": seconds * 1e3, **case.rates(seconds), "error": float(error)}


def by_flex_attention(case: Case) -> Way:
    """All cells as one row of keys, of which a mask shows each sequence its pages."""
    attend = flex_attention
    if case.subject.is_gpu:
        attend = torch.compile(flex_attention, dynamic=False)
    mask = block_mask(case)
    queries = case.queries.view(case.n, case.count, *case.queries.shape[1:]).transpose(1, 2)
    scale = case.spec.attention_scale

    def by_blocks(layer: int) -> Tensor:
        keys, values = (
            cells[layer][: case.pool.n_cells].transpose(0, 1)[None]
            for cells in (case.pool.keys, case.pool.values)
        )
        if not case.subject.is_gpu:
            # Uncompiled, it does not stretch one row of keys over all sequences.
            keys, values = (each.expand(case.n, -1, -1, -1) for each in (keys, values))
        output = attend(queries, keys, values, block_mask=mask, scale=scale, enable_gqa=True)
        return output.transpose(1, 2).reshape(case.queries.shape)

    return by_blocks


def block_mask(case: Case) -> BlockMask:
    """Blocks of queries by pages: those seen whole, and those that end inside."""
    n_blocks, n_cells = -(-case.count // _PAGE_SIZE), case.pool.n_cells
    shape = (case.n, 1, n_blocks, n_cells // _PAGE_SIZE)
    whole, cut = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    n_whole, n_cut = np.zeros(shape[:3], np.int32), np.zeros(shape[:3], np.int32)
    start = case.end - case.count
    for block in range(n_blocks):
        first = start + block * _PAGE_SIZE
        last = min(first + _PAGE_SIZE, case.end) - 1
        before, through = (first + 1) // _PAGE_SIZE, last // _PAGE_SIZE + 1
        n_whole[:, 0, block], n_cut[:, 0, block] = before, through - before
        whole[:, 0, block, :before] = case.pages[:, :before]
        cut[:, 0, block, : through - before] = case.pages[:, before:through]
    numbers = np.full((case.n, n_cells // _PAGE_SIZE), case.end, np.int32)
    np.put_along_axis(numbers, case.pages, np.arange(case.n_pages, dtype=np.int32)[None], axis=1)
    device = case.subject.device
    number = upload(numbers, device)

    def sees(b: Tensor, _head: Tensor, query: Tensor, cell: Tensor) -> Tensor:
        return number[b, cell // _PAGE_SIZE] * _PAGE_SIZE + cell % _PAGE_SIZE <= query + start

    parts = (upload(each, device) for each in (n_cut, cut, n_whole, whole))
    return BlockMask.from_kv_blocks(
        *parts, BLOCK_SIZE=_PAGE_SIZE, mask_mod=sees, seq_lengths=(case.count, n_cells)
    )


def by_flashinfer(case: Case) -> Way:
    """Its wrappers, which plan for a step and then run each layer."""
    import flashinfer

    spec, dtype, device = case.spec, case.subject.size.dtype, case.subject.device
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    begins = torch.arange(case.n + 1, dtype=torch.int32, device=device)
    last_page = torch.full_like(begins[1:], case.end - (case.n_pages - 1) * _PAGE_SIZE)
    pages = begins * case.n_pages, upload(case.pages.ravel(), device), last_page
    heads = spec.n_heads, spec.n_kv_heads, spec.head_width, _PAGE_SIZE
    types = {"q_data_type": dtype, "kv_data_type": dtype, "sm_scale": spec.attention_scale}
    if case.count == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True
        )
        wrapper.plan(*pages, *heads, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(begins * case.count, *pages, *heads, causal=True, **types)
    shape = (-1, _PAGE_SIZE, spec.n_kv_heads, spec.head_width)

    def by_wrapper(layer: int) -> Tensor:
        both = (
            cells[layer][: case.pool.n_cells].view(shape)
            for cells in (case.pool.keys, case.pool.values)
        )
        output: Tensor = wrapper.run(case.queries, tuple(both))
        return output

    return by_wrapper
