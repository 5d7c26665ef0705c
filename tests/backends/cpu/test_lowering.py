"""Lowering one segment of a kind and exchanging constants, against lowering each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn

from astrai_cli.models.decoder import Block
from astrai_cli.models.spec import ModelSpec, RopeSpec
from backends.cpu.lowering import SegmentLowering
from backends.cpu.quantized import quantize_block
from backends.cpu.rotation import ResidualRotation, rotate_block, turn_block
from backends.cpu.rounding import InputStatistics

MAX_ROWS = 16
PLAIN = ModelSpec(
    architecture="llama",
    name="small",
    n_layers=2,
    width=32,
    ffn_width=64,
    n_heads=2,
    n_kv_heads=1,
    head_width=16,
    vocab_size=8,
    context_length=64,
    norm_eps=1e-5,
    rope=RopeSpec(10000.0, 16),
    tied_head=True,
    qkv_bias=True,
    qk_norm=True,
    windows=(None, None),
)
GATED = replace(PLAIN, qkv_bias=False, gated_attention=True, post_norm_eps=1e-5)


@dataclass(frozen=True)
class Constants:
    """What a program holds of a lowered segment: the delegate's bytes, and its constants by key."""

    delegate: bytes
    data: dict[str, tuple[bytes, int]]

    @classmethod
    def of(cls, lowered: LoweredBackendModule) -> Constants:
        store = lowered.named_data_store_output
        data = {
            key: (bytes(store.buffers[entry.buffer_index]), entry.alignment)
            for key, entry in store.pte_data.items()
        }
        return cls(lowered.processed_bytes, data)


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each segment that is lowered and not copied."""
    preprocess = XnnpackBackend.preprocess
    seen: list[Any] = []

    def count_and_preprocess(*arguments: Any) -> Any:
        seen.append(arguments)
        return preprocess(*arguments)

    monkeypatch.setattr(XnnpackBackend, "preprocess", count_and_preprocess)
    return seen


class Between(nn.Module):
    """From one attention to the next, as the exporter cuts a model."""

    def __init__(self, block: Block, following: Block) -> None:
        super().__init__()
        self.block = block
        self.following = following

    def forward(self, attended: Tensor, h: Tensor, gate: Tensor | None = None) -> Any:
        h = self.block.merge(h, attended, gate)
        return *self.following.project(h), h


def random_block(spec: ModelSpec, seed: int) -> Block:
    torch.manual_seed(seed)
    block = Block(spec, 0).requires_grad_(False).eval()
    for module in block.modules():
        if isinstance(module, nn.RMSNorm):
            module.weight += 0.1 * torch.randn_like(module.weight)
    if spec.post_norm_eps is None:
        rotate_block(block, ResidualRotation(spec.width))
    else:
        turn_block(block)
    linears = [name for name, module in block.named_modules() if isinstance(module, nn.Linear)]
    return quantize_block(block, {name: InputStatistics() for name in linears})


def segment(spec: ModelSpec, seed: int) -> Between:
    return Between(random_block(spec, seed), random_block(spec, seed + 1))


@pytest.mark.parametrize("spec", [PLAIN, GATED], ids=["biases and head norms", "gates and norms"])
def test_a_copy_is_what_lowering_gives(lowerings: list[Any], spec: ModelSpec) -> None:
    q_width = spec.n_heads * spec.head_width
    widths = (q_width, spec.width, *((q_width,) if spec.gated_attention else ()))
    lowering = SegmentLowering(MAX_ROWS)
    lowering.lower(segment(spec, seed=1), widths)
    copy = lowering.lower(segment(spec, seed=10), widths)
    assert len(lowerings) == 1
    itself = SegmentLowering(MAX_ROWS).lower(segment(spec, seed=10), widths)
    assert len(lowerings) == 2
    assert Constants.of(copy) == Constants.of(itself)


class Line(nn.Module):
    """x * slope + offset."""

    slope: Tensor
    offset: Tensor

    def __init__(self, slope: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("slope", slope)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.slope + self.offset


WIDTH = 8
A, B, C, D = (torch.full((WIDTH,), float(value)) for value in range(4))


@pytest.mark.parametrize(
    ("template", "later"),
    [((A, B), (C, D)), ((A, B), (B, A)), ((A, B), (B, C)), ((A, A.clone()), (B, B.clone()))],
    ids=["others", "swapped", "moved up", "one twice"],
)
def test_constants_are_exchanged(
    lowerings: list[Any], template: tuple[Tensor, Tensor], later: tuple[Tensor, Tensor]
) -> None:
    lowering = SegmentLowering(MAX_ROWS)
    lowering.lower(Line(*template), (WIDTH,))
    copy = lowering.lower(Line(*later), (WIDTH,))
    assert len(lowerings) == 1
    itself = SegmentLowering(MAX_ROWS).lower(Line(*later), (WIDTH,))
    assert Constants.of(copy) == Constants.of(itself)


def test_constants_that_become_equal_are_stored_once(lowerings: list[Any]) -> None:
    lowering = SegmentLowering(MAX_ROWS)
    lowering.lower(Line(A, B), (WIDTH,))
    copy = Constants.of(lowering.lower(Line(C, C.clone()), (WIDTH,)))
    assert len(lowerings) == 1
    [(key, (data, _))] = copy.data.items()
    assert data == C.numpy().tobytes()
    assert copy.delegate.count(key.encode()) == 2


@pytest.mark.parametrize(
    ("template", "later"),
    [
        (lambda: Line(A, A.clone()), lambda: Line(B, C)),
        (lambda: Line(A, B), lambda: Line(A, B[:1])),
        (lambda: Line(A, B), lambda: Reversed(A, B)),
        (lambda: Line(*torch.rand(2, WIDTH)), lambda: Line(A, B)),
    ],
    ids=["equal constants no longer equal", "another shape", "another kind", "parts of one"],
)
def test_what_cannot_be_exchanged_is_lowered(
    lowerings: list[Any], template: Callable[[], Line], later: Callable[[], Line]
) -> None:
    lowering = SegmentLowering(MAX_ROWS)
    lowering.lower(template(), (WIDTH,))
    lowered = Constants.of(lowering.lower(later(), (WIDTH,)))
    assert len(lowerings) == 2
    assert lowered == Constants.of(SegmentLowering(MAX_ROWS).lower(later(), (WIDTH,)))


class Reversed(Line):
    def forward(self, x: Tensor) -> Tensor:
        return (x + self.offset) * self.slope


class Sorted(Line):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=1).values * self.slope + self.offset


def test_an_operator_that_xnnpack_lacks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="sort"):
        SegmentLowering(MAX_ROWS).lower(Sorted(A, B), (WIDTH,))
