"""The GPU's own kernels, in Triton, which PyTorch's wheels for NVIDIA GPUs bring.

Without Triton, and on the processor, everything has another way; see `available`. Triton's
interpreter (TRITON_INTERPRET=1) runs them on the processor, for tests.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from astrai_cli.models.spec import ModelSpec
from backends.cuda.inputs import StepTensors

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Up to this many rows a product reads the integers themselves; more make them floats first.
MOST_ROWS = 64
_TILE_QUERIES = 64
_TILE_SPLITS = 8
_MOST_SPLITS = 64
# Twice the multiprocessors of a large GPU.
FULL_PROGRAMS = 256
_INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))


def available(device: torch.device) -> bool:
    return triton is not None and (device.type == "cuda" or _INTERPRETED)


def version() -> str:
    """Triton's."""
    return str(triton.__version__)


def can_multiply(x: Tensor) -> bool:
    return x.shape[0] <= MOST_ROWS and available(x.device)


if triton is not None:

    @triton.jit(do_not_specialize=["n_rows"])
    def _multiply(
        x_at,
        weight_at,
        scales_at,
        biases_at,
        units_at,
        out_at,
        n_rows,
        n_out,
        columns,
        bits: tl.constexpr,
        group: tl.constexpr,
        superblock: tl.constexpr,
        block_rows: tl.constexpr,
        block_out: tl.constexpr,
        block_columns: tl.constexpr,
    ):
        """A tile of out[rows, out] = x[rows, columns] @ dequantized[out, columns].T.

        A tile of weights [block_out, block_columns] is read in bytes. With 4 bits these are
        its even columns, and in their upper halves the odd ones.
        """
        per_byte: tl.constexpr = 8 // bits
        block_bytes: tl.constexpr = block_columns // per_byte
        rows = tl.arange(0, block_rows)
        outs = tl.program_id(0) * block_out + tl.arange(0, block_out)
        row_mask = rows[:, None] < n_rows
        out_mask = outs[:, None] < n_out
        # Rows of matrices with billions of bytes begin behind what int32 holds.
        wide_outs = outs.to(tl.int64)[:, None]
        total = tl.zeros((block_rows, block_out), dtype=tl.float32)
        for begin in range(0, columns, block_columns):
            places = begin // per_byte + tl.arange(0, block_bytes)
            inside = places < columns // per_byte
            mask = out_mask & inside[None, :]
            column = places * per_byte
            at = wide_outs * (columns // per_byte) + places[None, :]
            integers = tl.load(weight_at + at, mask=mask, other=0)
            at = wide_outs * (columns // group) + (column // group)[None, :]
            scales = tl.load(scales_at + at, mask=mask, other=0).to(tl.float32)
            biases = tl.load(biases_at + at, mask=mask, other=0).to(tl.float32)
            if superblock:
                at = (wide_outs * (columns // superblock) + (column // superblock)[None, :]) * 2
                scales *= tl.load(units_at + at, mask=mask, other=0.0).to(tl.float32)
                biases *= tl.load(units_at + at + 1, mask=mask, other=0.0).to(tl.float32)
            x_places = x_at + rows[:, None] * columns + column[None, :]
            x_mask = row_mask & inside[None, :]
            x = tl.load(x_places, mask=x_mask, other=0.0)
            low = integers if bits == 8 else integers & 15
            weights = (low.to(tl.float32) * scales + biases).to(x.dtype)
            total += tl.dot(x, tl.trans(weights), input_precision="ieee")
            if bits == 4:
                x = tl.load(x_places + 1, mask=x_mask, other=0.0)
                weights = ((integers >> 4).to(tl.float32) * scales + biases).to(x.dtype)
                total += tl.dot(x, tl.trans(weights), input_precision="ieee")
        at = rows[:, None] * n_out + outs[None, :]
        tl.store(
            out_at + at, total.to(out_at.dtype.element_ty), mask=row_mask & (outs < n_out)[None, :]
        )

    @triton.jit
    def _attend(
        q_at,
        keys_at,
        values_at,
        positions_at,
        first_pages_at,
        pages_at,
        page_size_at,
        tile_begins_at,
        tile_counts_at,
        sums_at,
        stats_at,
        scale,
        n_kv_heads,
        window: tl.constexpr,
        heads: tl.constexpr,
        width: tl.constexpr,
        block_width: tl.constexpr,
        block_queries: tl.constexpr,
        block_keys: tl.constexpr,
        splits: tl.constexpr,
    ):
        """A tile of queries of one sequence and one key-value head, over a part of its keys.

        Query m is head m % heads of row m // heads. Softmax runs along (Milakov and Gimelshein
        2018); `_merge` puts the parts together.
        """
        kv_head, split = tl.program_id(1), tl.program_id(2)
        first_row = tl.load(tile_begins_at + tl.program_id(0))
        count = tl.load(tile_counts_at + tl.program_id(0))
        m = tl.arange(0, block_queries)
        is_query = m < count * heads
        row = first_row + m // heads
        position = tl.load(positions_at + row, mask=is_query, other=0)
        d = tl.arange(0, block_width)
        query = (row * n_kv_heads + kv_head) * heads + m % heads
        q_mask = is_query[:, None] & (d < width)[None, :]
        q = tl.load(q_at + query[:, None] * width + d[None, :], mask=q_mask, other=0.0)

        first_page = tl.load(first_pages_at + first_row)
        page_size = tl.load(page_size_at)
        first = tl.load(positions_at + first_row)
        end = tl.load(positions_at + first_row + count - 1) + 1
        begin = tl.maximum(first - window + 1, 0) if window else 0
        part = tl.cdiv(tl.cdiv(end - begin, splits), block_keys) * block_keys
        low = begin + split * part
        high = tl.minimum(low + part, end)

        highest = tl.full((block_queries,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((block_queries,), dtype=tl.float32)
        sums = tl.zeros((block_queries, block_width), dtype=tl.float32)
        for at in range(low, high, block_keys):
            key = at + tl.arange(0, block_keys)
            is_key = key < high
            page = tl.load(pages_at + first_page + key // page_size, mask=is_key, other=0)
            cell = page.to(tl.int64) * page_size + key % page_size
            places = (cell[:, None] * n_kv_heads + kv_head) * width + d[None, :]
            key_mask = is_key[:, None] & (d < width)[None, :]
            keys = tl.load(keys_at + places, mask=key_mask, other=0.0)
            values = tl.load(values_at + places, mask=key_mask, other=0.0)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
            distance = position[:, None] - key[None, :]
            seen = is_key[None, :] & (distance >= 0)
            if window:
                seen = seen & (distance < window)
            scores = tl.where(seen, scores, float("-inf"))
            raised = tl.maximum(highest, tl.max(scores, 1))
            # Queries that have seen no key yet.
            base = tl.where(raised == float("-inf"), 0.0, raised)
            weights = tl.exp(scores - base[:, None])
            kept = tl.exp(highest - base)
            total = total * kept + tl.sum(weights, 1)
            added = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            sums = sums * kept[:, None] + added
            highest = raised

        at = query.to(tl.int64) * splits + split
        tl.store(sums_at + at[:, None] * width + d[None, :], sums, mask=q_mask)
        tl.store(stats_at + at * 2, highest, mask=is_query)
        tl.store(stats_at + at * 2 + 1, total, mask=is_query)

    @triton.jit
    def _merge(
        sums_at,
        stats_at,
        out_at,
        width: tl.constexpr,
        block_width: tl.constexpr,
        splits: tl.constexpr,
    ):
        """The parts of one query and head as what it attended to."""
        query = tl.program_id(0).to(tl.int64)
        part = query * splits + tl.arange(0, splits)
        d = tl.arange(0, block_width)
        highest = tl.load(stats_at + part * 2)
        total = tl.load(stats_at + part * 2 + 1)
        weights = tl.exp(highest - tl.max(highest, 0))
        mask = (d < width)[None, :]
        sums = tl.load(sums_at + part[:, None] * width + d[None, :], mask=mask, other=0.0)
        merged = tl.sum(sums * weights[:, None], 0) / tl.sum(total * weights, 0)
        tl.store(out_at + query * width + d, merged.to(out_at.dtype.element_ty), mask=d < width)


def multiply(
    x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor, units: Tensor | None
) -> Tensor:
    """x [n, columns] times the transposed matrix: [n, out]; n is at most MOST_ROWS.

    The matrix is a `PackedMatrix`'s; its weights are rounded to x's type as they are where
    they are made floats first, and products are summed in float32.
    """
    n_rows, columns = x.shape
    out = x.new_empty(n_rows, len(weight))
    block_out = 32
    _multiply[(triton.cdiv(len(weight), block_out),)](
        x.contiguous(),
        weight,
        scales,
        biases,
        scales if units is None else units,
        out,
        n_rows,
        len(weight),
        columns,
        bits=weight.shape[1] * 8 // columns,
        group=columns // scales.shape[1],
        superblock=0 if units is None else columns // units.shape[1],
        block_rows=max(16, triton.next_power_of_2(n_rows)),
        block_out=block_out,
        block_columns=256,
    )
    return out


def tile_rows(spec: ModelSpec) -> int:
    """Queries of one sequence that attend together."""
    return max(1, _TILE_QUERIES // (spec.n_heads // spec.n_kv_heads))


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    inputs: StepTensors,
    scale: float,
    *,
    window: int | None,
) -> Tensor:
    """Attention of q [T, H, D] over cells of keys and values [cells, H_kv, D]: [T, H, D].

    Tiles of `inputs` are of one row each, or of `tile_rows` at most where T is larger.
    """
    n_rows, n_heads, width = q.shape
    n_kv_heads, n_tiles = keys.shape[1], len(inputs.tile_begins)
    heads = n_heads // n_kv_heads
    rows = 1 if n_tiles == n_rows else max(1, _TILE_QUERIES // heads)
    splits = _splits(n_tiles * n_kv_heads, is_single=n_tiles == n_rows)
    block_width = max(16, triton.next_power_of_2(width))
    sums = q.new_empty(n_rows, n_heads, splits, width, dtype=torch.float32)
    stats = q.new_empty(n_rows, n_heads, splits, 2, dtype=torch.float32)
    _attend[(n_tiles, n_kv_heads, splits)](
        q.contiguous(),
        keys,
        values,
        inputs.positions,
        inputs.first_pages,
        inputs.pages,
        inputs.page_size,
        inputs.tile_begins,
        inputs.tile_counts,
        sums,
        stats,
        scale,
        n_kv_heads,
        window=window or 0,
        heads=heads,
        width=width,
        block_width=block_width,
        block_queries=max(16, triton.next_power_of_2(rows * heads)),
        block_keys=64,
        splits=splits,
    )
    out = torch.empty_like(q)
    _merge[(n_rows * n_heads,)](
        sums, stats, out, width=width, block_width=block_width, splits=splits
    )
    return out


def _splits(programs: int, *, is_single: bool) -> int:
    """Parts that keys are cut in, so that some hundred programs run, whatever the step.

    Each number is compiled apart: prepared steps, of single tokens, are so at the start; for
    others there are two.
    """
    if not is_single:
        return _TILE_SPLITS if programs < FULL_PROGRAMS else 1
    return int(min(_MOST_SPLITS, triton.next_power_of_2(triton.cdiv(FULL_PROGRAMS, programs))))
