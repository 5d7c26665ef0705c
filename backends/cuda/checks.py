"""What a device's kernels and graphs compute, against plain PyTorch on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from astrai_cli.models.decoder import Block, Decoder
from astrai_cli.models.draft import BlockDraft
from astrai_cli.models.draft_spec import DraftSpec
from astrai_cli.models.spec import ModelSpec, RopeSpec
from backends.affine import SUPERBLOCK
from backends.base import ExecutorInfo, SequenceStep, Step
from backends.cuda import kernels
from backends.cuda.attention import CellPool
from backends.cuda.decoder import DeviceBlock, Float32Head
from backends.cuda.draft import CudaDraft
from backends.cuda.forward import prepare_static, run_others
from backends.cuda.inputs import Layout, StepTensors, upload
from backends.cuda.matrices import PackedLinear, PackedMatrix
from backends.drafting import DraftOwner, DraftStep
from backends.packing import PackedStep, pack

# Relative errors that no rounding of bfloat16 explains.
MOST_ERROR = 0.02
SPEC = ModelSpec(
    architecture="llama",
    name="check",
    n_layers=2,
    width=256,
    ffn_width=512,
    n_heads=8,
    n_kv_heads=2,
    head_width=64,
    vocab_size=512,
    context_length=512,
    norm_eps=1e-5,
    rope=RopeSpec(10000.0, 64),
    tied_head=False,
    qkv_bias=False,
    qk_norm=False,
    windows=(None, 40),
)
# Its heads are so many that a block's rows do not attend together.
DRAFT_SPEC = DraftSpec(
    layers=replace(SPEC, architecture="dflash", n_heads=16, qk_norm=True, windows=(None, None)),
    taps=(0,),
    max_block=12,
    mask_id=SPEC.vocab_size - 1,
)
# Bits, group, and whether scales are nested: those of Q4_0, Q8_0, Q4_K, Q5_K and Q6_K.
FORMS = ((4, 32, False), (8, 32, False), (4, 32, True), (8, 32, True), (8, 16, True))
_PAGE_SIZE, _CELLS = 16, 512
_DRAFT_STARTS = (100, 37, 5, 128, 1, 64)


def check_products(device: torch.device, dtype: torch.dtype) -> float:
    """The worst relative error of products with packed matrices of every form."""
    matrices = [
        random_matrix((96, 512), bits, device, group=group, nested=nested)
        for bits, group, nested in FORMS
    ]
    return max(
        _product_error(matrix, torch.randn(rows, 512, device=device).to(dtype))
        for matrix in matrices
        for rows in (1, 20, kernels.MOST_ROWS)
    )


def check_attention(device: torch.device, dtype: torch.dtype) -> float:
    """The worst relative error of attention, of widths and shares of heads that are usual."""
    shapes = ((64, 1, True), (64, 3, False), (128, 6, True), (128, 8, False))
    return max(
        _attention_error(device, dtype, width, heads, only_single=only_single)
        for width, heads, only_single in shapes
    )


def check_graphs(device: torch.device, dtype: torch.dtype) -> float:
    """The relative error of a prepared step of a small model against one that gathers."""
    decoder = random_decoder(device, dtype)
    step, packed = _steps(SPEC, n_singles=3, n_prompt=0)
    layout = Layout.of(step, packed, kernels.tile_rows(SPEC))
    pool = CellPool(SPEC, _CELLS, dtype, device)
    _fill(pool)
    [forward] = prepare_static(decoder, pool, [4], SPEC.context_length)
    logits, _ = forward(layout.padded(4, pool.padding))
    inputs = StepTensors.of(upload(layout.integers(), device), layout)
    attend = pool.attend_by(inputs, layout.groups, gather=True)
    h = decoder.embed(inputs.tokens)
    expected = decoder(h, inputs.positions, inputs.wanted, attend)
    mixed, packed = _steps(SPEC, n_singles=2, n_prompt=70)
    run_others(decoder, pool, Layout.of(mixed, packed, kernels.tile_rows(SPEC)), packed.embeddings)
    return _error(logits[:3], expected)


def check_drafts(device: torch.device, dtype: torch.dtype) -> float:
    """The worst relative error of blocks of a small draft, and of what is proposed.

    Of the latter, how far its logits lie below the highest, on average.
    """
    target = random_decoder(device, dtype)
    draft = CudaDraft(
        random_draft(device, dtype), target, n_tokens=0, max_owners=len(_DRAFT_STARTS)
    )
    draft.allocate(_CELLS, SPEC.context_length)
    _fill(draft.pool)
    errors = []
    for n_owners in (1, 3, len(_DRAFT_STARTS)):
        step = _draft_step(n_owners)
        expected = draft.hidden(step, gather=True)
        errors.append(_error(draft.hidden(step), expected))
        logits = target.output(expected[:, 1:].flatten(0, 1))
        proposed = upload(draft.propose(step).astype(np.int64), device).view(-1, 1)
        highest = logits.amax(dim=1, keepdim=True)
        errors.append(float(((highest - logits.gather(1, proposed)) / highest).mean()))
    return max(errors)


CHECKS: Mapping[str, Callable[[torch.device, torch.dtype], float]] = {
    "products with packed matrices": check_products,
    "attention": check_attention,
    "fused blocks and graphs": check_graphs,
    "block drafts": check_drafts,
}


def random_decoder(
    device: torch.device, dtype: torch.dtype, spec: ModelSpec = SPEC, bits: int = 4
) -> Decoder:
    """A decoder of the executor's making, with packed matrices of random numbers."""
    with torch.device("meta"):
        decoder = Decoder(spec)
    for name, module in [*decoder.named_modules()]:
        parent, _, own = name.rpartition(".")
        if isinstance(module, nn.Linear):
            matrix = random_matrix((module.out_features, module.in_features), bits, device)
            decoder.get_submodule(parent).add_module(own, PackedLinear(matrix))
        elif isinstance(module, nn.RMSNorm):
            gains = torch.ones(module.normalized_shape, device=device, dtype=dtype)
            module.weight = nn.Parameter(gains)
        elif isinstance(module, nn.Embedding):
            rows = torch.randn(module.weight.shape, device=device, dtype=dtype)
            module.weight = nn.Parameter(rows)
    decoder.add_module("output", Float32Head(decoder.output))
    is_gpu = device.type == "cuda"
    decoder.blk = nn.ModuleList(DeviceBlock(block, compiled=is_gpu) for block in _blocks(decoder))
    decoder.rope_frequencies = decoder.rope_frequencies.to(device)
    return decoder.requires_grad_(False).eval()


def random_draft(
    device: torch.device, dtype: torch.dtype, spec: DraftSpec = DRAFT_SPEC
) -> BlockDraft:
    """A draft of random numbers."""
    with device:
        draft = BlockDraft(spec).to(device)
    for parameter in draft.parameters():
        parameter.data = parameter.data.to(dtype)
    return draft.requires_grad_(False).eval()


def random_matrix(
    shape: tuple[int, int],
    bits: int,
    device: torch.device,
    *,
    group: int = 32,
    nested: bool = True,
) -> PackedMatrix:
    """Weights [out, columns] of about the deviation that keeps a vector's length.

    nested: as in `backends.affine`.
    """
    out, columns = shape
    weight = torch.randint(0, 256, (out, columns * bits // 8), dtype=torch.uint8, device=device)
    largest = 6 / 2**bits / columns**0.5
    middle = -(2 ** (bits - 1))
    groups = (out, columns // group)
    if not nested:
        steps = torch.rand(groups, device=device) * largest
        return PackedMatrix(weight, steps.half(), (steps * middle).half(), None, columns)
    factors = torch.randint(0, 64, groups, dtype=torch.int8, device=device)
    unit = torch.tensor([largest / 64, largest / 64 * middle], dtype=torch.float16, device=device)
    units = unit.expand(out, columns // SUPERBLOCK, 2).contiguous()
    return PackedMatrix(weight, factors, factors.clone(), units, columns)


def _blocks(decoder: Decoder) -> Iterator[Block]:
    for block in decoder.blk:
        assert isinstance(block, Block)
        yield block


def _product_error(matrix: PackedMatrix, x: Tensor) -> float:
    expected = x.float() @ matrix.dequantized(x.dtype).float().T
    return _error(
        kernels.multiply(x, matrix.weight, matrix.scales, matrix.biases, matrix.units), expected
    )


def _attention_error(
    device: torch.device, dtype: torch.dtype, width: int, heads: int, *, only_single: bool
) -> float:
    spec = replace(SPEC, head_width=width, n_heads=2 * heads)
    step, packed = _steps(spec, n_singles=3, n_prompt=0 if only_single else 70)
    layout = Layout.of(step, packed, kernels.tile_rows(spec))
    inputs = StepTensors.of(upload(layout.integers(), device), layout)
    pool = CellPool(spec, _CELLS, dtype, device)
    _fill(pool)
    shape = (layout.n_rows, spec.n_heads, 1, width)
    q, k, v = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    errors = []
    for layer in range(spec.n_layers):
        arguments = (q, k[:, :2], v[:, :2], inputs.positions, layer)
        by_kernel, expected = (
            pool.attend_by(inputs, layout.groups, gather=gather)(*arguments)
            for gather in (False, True)
        )
        errors.append(_error(by_kernel, expected))
    return max(errors)


def _fill(pool: CellPool) -> None:
    for cells in (*pool.keys, *pool.values):
        cells.normal_()


def _steps(spec: ModelSpec, n_singles: int, n_prompt: int) -> tuple[Step, PackedStep]:
    """Sequences far into their contexts, in pages of no order; one runs n_prompt tokens."""
    pages = np.random.default_rng(0).permutation(32).astype(np.int32).reshape(4, 8)
    starts, counts = [100, 37, 5][:n_singles], [1] * n_singles
    if n_prompt:
        starts, counts = [*starts, 50], [*counts, n_prompt]
    sequences = [
        SequenceStep(np.arange(count, dtype=np.int32), start, own)
        for start, count, own in zip(starts, counts, pages, strict=False)
    ]
    step = Step(sequences, _PAGE_SIZE)
    return step, pack(step, ExecutorInfo(spec, "cuda", 512, spec.context_length, 0), _CELLS)


def _draft_step(n_owners: int) -> DraftStep:
    """Blocks of answers in pages of no order, which some of them share."""
    pages = np.random.default_rng(1).integers(0, _CELLS // _PAGE_SIZE, (n_owners, 8), np.int32)
    owners = [
        DraftOwner(number, start, own)
        for number, (start, own) in enumerate(zip(_DRAFT_STARTS, pages, strict=False))
    ]
    return DraftStep(owners, DRAFT_SPEC.max_block, _PAGE_SIZE)


def _error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())
