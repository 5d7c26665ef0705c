"""What the exporter's graph calls outside XNNPACK; the kernels are in `native/operators.cpp`.

Each operator is here only as far as tracing needs it: its schema, its shapes, and
the out-variant that a `.pte` calls.
"""

from __future__ import annotations

import torch

# Registers kvcache::update_and_attend, ExecuTorch's neutral operator.
from executorch.extension.llm.cache import update_and_attend as _neutral
from torch import Tensor

_kvcache = torch.library.Library("kvcache", "FRAGMENT")
_kvcache.define(
    "update_and_attend.out(Tensor q, Tensor k, Tensor v, Tensor position, SymInt layer_id,"
    " float scale, ScalarType out_dtype, *, Tensor(a!) out) -> Tensor(a!)"
)

_astrai = torch.library.Library("astrai", "DEF")
_astrai.define("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor")
_astrai.define("rotate.out(Tensor x, Tensor cos, Tensor sin, *, Tensor(a!) out) -> Tensor(a!)")
_astrai.define("embed(Tensor tokens, Tensor table, Tensor scales) -> Tensor")
_astrai.define(
    "embed.out(Tensor tokens, Tensor table, Tensor scales, *, Tensor(a!) out) -> Tensor(a!)"
)


@torch.library.register_fake("astrai::rotate", lib=_astrai)
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("astrai::embed", lib=_astrai)
def _(tokens: Tensor, table: Tensor, scales: Tensor) -> Tensor:
    return table.new_empty((tokens.shape[0], table.shape[1]), dtype=torch.float32)


update_and_attend = _neutral.update_and_attend
"""attended [T, H, 1, D] = update_and_attend(q, k, v, position, layer, scale, out_dtype)."""

rotate = torch.ops.astrai.rotate.default
"""x [T, heads, 1, D] turned by cos and sin [T, half]."""

embed = torch.ops.astrai.embed.default
"""float32 rows [T, width] of an int8, int16 or float32 table, one float16 scale a group."""
