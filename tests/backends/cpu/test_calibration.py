"""Calibration, block by block, against a plain forward of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_gguf
from torch import nn
from whole_sequences import Blocks, inputs_of

from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.tokenizer import build_tokenizer
from backends.cpu.calibration import WINDOW_TOKENS, WINDOWS, Calibration, calibration_tokens


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {"sliding_window": 7, "sliding_window_pattern": (False, True)}),
        ("qwen2", {"n_heads": 6}),
        ("qwen3", {"n_kv_heads": 1, "head_width": 32}),
    ],
)
def test_statistics_are_those_of_a_plain_forward(
    tmp_path: Path, architecture: str, fields: dict[str, Any]
) -> None:
    model = Blocks.load(tiny_gguf(tmp_path, architecture, **fields))
    linears: dict[str, nn.Module] = {
        f"{layer}.{name}": module
        for layer, block in enumerate(model.blocks)
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear)
    }
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (3, 40), generator=random)
    expected = inputs_of(
        {**linears, "head": model.head}, lambda: [model.logits(window) for window in tokens]
    )

    calibration = Calibration(model.embedding[tokens], model.spec, model.frequencies)
    statistics = {
        f"{layer}.{name}": found
        for layer, block in enumerate(model.blocks)
        for name, found in calibration.run(block).items()
    }
    statistics["head"] = calibration.run_head(model.norm)

    assert statistics.keys() == expected.keys()
    for name, x in expected.items():
        moments = x.T @ x
        torch.testing.assert_close(
            statistics[name].moments, moments, rtol=1e-4, atol=1e-5 * float(moments.abs().max())
        )


def test_blocks_are_watched_no_longer_than_they_run(tmp_path: Path) -> None:
    model = Blocks.load(tiny_gguf(tmp_path))
    block = model.blocks[0]
    calibration = Calibration(torch.randn(1, 5, model.spec.width), model.spec, model.frequencies)
    calibration.run(block)
    assert not any(module._forward_pre_hooks for module in block.modules())


@pytest.mark.parametrize(("context", "length"), [(512, WINDOW_TOKENS), (100, 100), (4096, 512)])
def test_the_text_is_cut_into_windows_the_model_can_take(
    tmp_path: Path, context: int, length: int
) -> None:
    with ModelFile.open(tiny_gguf(tmp_path, context_length=context)) as model_file:
        tokens = calibration_tokens(build_tokenizer(model_file.metadata), model_file.spec)
    assert tokens.shape == (WINDOWS * WINDOW_TOKENS // length, length)
    assert tokens.min() >= 0
    assert tokens.max() < VOCABULARY
    assert len(set(tokens.flat)) > 100
