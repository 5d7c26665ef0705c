"""Folding rotations into a vision tower leaves what it computes."""

from __future__ import annotations

import pytest
import torch
from muse_fixtures import MMPROJ
from torch import Tensor, nn

from astrai_cli.models.decoder import Rotation
from astrai_cli.models.vision import VisionBlock, VisionTower, load_vision_tower
from astrai_cli.models.vision_spec import VisionFile
from backends.cpu.rotation import ResidualRotation
from backends.cpu.vision_rotation import (
    as_stream,
    cells_from_stream,
    plain_norm,
    rotate_vision_block,
    stream_map,
)

PATCHES = 24


@pytest.fixture
def tower() -> VisionTower:
    with VisionFile.open(MMPROJ) as file:
        return load_vision_tower(file)


@pytest.fixture
def residual(tower: VisionTower) -> ResidualRotation:
    return ResidualRotation(tower.spec.width)


@pytest.fixture
def rows(tower: VisionTower) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(PATCHES, tower.spec.width) * 3 + 1


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_a_block(tower: VisionTower, residual: ResidualRotation, rows: Tensor) -> None:
    block = tower.v.blk[0]
    assert isinstance(block, VisionBlock)
    rotate = Rotation(torch.rand(PATCHES, tower.spec.head_width // 2))
    expected = as_stream(block(rows, rotate, [16, 8]), residual)
    rotate_vision_block(block, residual)
    close(block(as_stream(rows, residual), rotate, [16, 8]), expected)


def test_the_way_into_the_stream(
    tower: VisionTower, residual: ResidualRotation, rows: Tensor
) -> None:
    norm = tower.v.pre_ln
    centred = rows - rows.mean(dim=1, keepdim=True)
    entered = stream_map(norm, residual)(plain_norm(norm)(centred))
    close(entered, as_stream(norm(rows), residual))


def test_the_way_out_of_it(tower: VisionTower, residual: ResidualRotation, rows: Tensor) -> None:
    norm, first = tower.v.post_ln, tower.mm[0]
    assert isinstance(first, nn.Linear)

    def cells(patches: Tensor) -> Tensor:
        return patches.view(PATCHES // 4, 4, -1).transpose(1, 2).flatten(1)

    folded = cells_from_stream(first.weight, norm, residual)
    normed = plain_norm(norm)(as_stream(rows, residual))
    close(folded(cells(normed)), first(cells(norm(rows))))
