"""A program that is attention and nothing else, to run the C++ operator by itself.

Queries, keys and values are rows of tables looked up by token id, and the "logits"
are what the queries attended to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from numpy.typing import NDArray
from torch import Tensor, nn

from astrai_cli.artifact import Artifact
from astrai_cli.manifest import ArtifactLimits, Manifest, Source
from astrai_cli.models.spec import ModelSpec, RopeSpec
from astrai_cli.models.tokenizer import SpecialTokens
from backends.cpu.operators import update_and_attend

IDS = 400
MAX_STEP = 512
CONTEXT = 2048


@dataclass(frozen=True)
class Heads:
    """`n_kv_heads` heads of keys and values, each read by `group` heads of queries.

    sharpness: multiplies the scores; from about 10 on most keys weigh nothing.
    """

    width: int
    group: int
    n_kv_heads: int = 2
    sharpness: float = 1.0

    @property
    def n_heads(self) -> int:
        return self.n_kv_heads * self.group

    @property
    def scale(self) -> float:
        """Not the models' usual one, so that the operator must heed it."""
        return float(1.5 * self.sharpness / self.width**0.5)

    @cached_property
    def tables(self) -> tuple[NDArray[np.float32], ...]:
        """Queries [IDS, H, D], keys and values [IDS, H_kv, D]."""
        random = np.random.default_rng(self.width * 100 + self.group)
        counts = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        return tuple(
            random.standard_normal((IDS, heads, self.width), dtype=np.float32) for heads in counts
        )


class TableAttention(nn.Module):
    """forward(tokens, positions, rows), as the exporter's programs have it."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads
        for name, table in zip("qkv", heads.tables, strict=True):
            self.register_buffer(name, torch.from_numpy(table.reshape(IDS, -1)))

    def forward(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        q, k, v = (
            nn.functional.embedding(tokens, table).view(-1, heads, 1, self.heads.width)
            for table, heads in (
                (self.q, self.heads.n_heads),
                (self.k, self.heads.n_kv_heads),
                (self.v, self.heads.n_kv_heads),
            )
        )
        attended = update_and_attend(
            q, k, v, positions[:, None], 0, self.heads.scale, torch.float32
        )
        return attended.view(-1, self.heads.n_heads * self.heads.width).index_select(0, rows)


def write_table_attention(path: Path, heads: Heads) -> None:
    tokens, rows = (torch.export.Dim(name, min=1, max=MAX_STEP) for name in ("tokens", "rows"))
    every = torch.arange(5)
    exported = torch.export.export(
        TableAttention(heads),
        (every.to(torch.int32), every, every[:4]),
        dynamic_shapes=({0: tokens}, {0: tokens}, {0: rows}),
    )
    config = EdgeCompileConfig(_check_ir_validity=False)
    path.write_bytes(to_edge(exported, compile_config=config).to_executorch().buffer)


def table_artifact(program: Path, heads: Heads, window: int | None) -> Artifact:
    """An artifact of one layer around a program that `write_table_attention` wrote."""
    spec = ModelSpec(
        architecture="llama",
        name="tables",
        n_layers=1,
        width=heads.n_heads * heads.width,
        ffn_width=1,
        n_heads=heads.n_heads,
        n_kv_heads=heads.n_kv_heads,
        head_width=heads.width,
        vocab_size=IDS,
        context_length=CONTEXT,
        norm_eps=1e-5,
        rope=RopeSpec(10000.0, heads.width),
        tied_head=True,
        qkv_bias=False,
        qk_norm=False,
        windows=(window,),
    )
    manifest = Manifest(
        format_version=1,
        backend="cpu",
        spec=spec,
        limits=ArtifactLimits(max_prefill_chunk=MAX_STEP, max_context=CONTEXT),
        special_tokens=SpecialTokens(bos=None, eos=(), add_bos=False),
        source=Source(name="tables", sha256=""),
        export_options={},
        details={"program": program.name},
        files={},
        versions={},
    )
    return Artifact(program.parent, manifest)


def attended(
    heads: Heads, tokens: NDArray[np.int32], window: int | None, kv_dtype: str
) -> NDArray[np.float64]:
    """What each token of a sequence attends to, in float64: [T, H * D].

    Keys and values are as the cache stores them.
    """
    q, k, v = (table[tokens] for table in heads.tables)
    k, v = (x.astype(kv_dtype).astype(np.float64) for x in (k, v))
    distance = np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))
    hidden = (distance < 0) | (distance >= (window or len(tokens)))
    output = np.empty(q.shape)
    for head in range(heads.n_heads):
        scores = heads.scale * (q[:, head].astype(np.float64) @ k[:, head // heads.group].T)
        scores[hidden] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        output[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, head // heads.group]
    return output.reshape(len(tokens), -1)
