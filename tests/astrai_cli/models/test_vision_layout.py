from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from muse_fixtures import MMPROJ

from astrai_cli.models.vision_layout import PatchLayout, split_patches
from astrai_cli.models.vision_spec import VisionFile, VisionSpec

sizes = st.integers(1, 13).map(lambda cells: 2 * cells)


@pytest.fixture(scope="module")
def spec() -> VisionSpec:
    """Tiles of 4 x 4 patches."""
    with VisionFile.open(MMPROJ) as tower:
        return tower.spec


@given(rows=sizes, columns=sizes)
def test_a_tile_is_contiguous(spec: VisionSpec, rows: int, columns: int) -> None:
    layout = PatchLayout.of(rows, columns, spec)
    assert sorted(layout.order) == list(range(rows * columns))
    row, column = layout.coordinates
    tiles = row // spec.grid_side * columns + column // spec.grid_side
    changes = np.flatnonzero(np.diff(tiles)) + 1
    np.testing.assert_array_equal(np.cumsum(layout.tiles), [*changes, rows * columns])
    assert len(set(tiles)) == len(layout.tiles)


def test_some_layers_see_the_whole_image(spec: VisionSpec) -> None:
    layout = PatchLayout.of(6, 4, spec)
    seen = [layout.groups(layer, replace(spec, n_layers=6)).tolist() for layer in range(6)]
    assert seen == [[16, 8], [16, 8], [16, 8], [24], [16, 8], [24]]


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (4, 4), (6, 10), (32, 2), (2, 18)])
@pytest.mark.parametrize("side", [1, 4, 5])
def test_positions_are_those_of_grid_sample(
    spec: VisionSpec, rows: int, columns: int, side: int
) -> None:
    table = np.random.default_rng(0).standard_normal((side**2, 6), dtype=np.float32)
    y, x = (torch.from_numpy((2 * np.arange(n) + 1) / n - 1).float() for n in (rows, columns))
    grid = torch.stack([x.expand(rows, -1), y[:, None].expand(-1, columns)], dim=-1)
    image = torch.from_numpy(table).T.view(1, -1, side, side)
    expected = torch.nn.functional.grid_sample(image, grid[None], align_corners=False)
    layout = PatchLayout.of(rows, columns, spec)
    in_order = expected[0].flatten(1).T.numpy()[layout.order]
    np.testing.assert_allclose(layout.positions(table), in_order, atol=1e-5)


def test_angles_count_columns_first_and_from_one(spec: VisionSpec) -> None:
    layout = PatchLayout.of(6, 4, spec)
    angles = layout.angles(spec)
    quarter = spec.head_width // 4
    assert angles.shape == (24, 2 * quarter)
    last = int(np.flatnonzero(layout.order == 23)[0])
    assert (angles[last, 0], angles[last, quarter]) == (4, 6)
    slowest = spec.rope_base ** (-(quarter - 1) / quarter)
    assert angles[last, -1] == pytest.approx(6 * slowest)


@given(rows=sizes, columns=sizes)
def test_cells_hold_their_patches_channel_by_channel(
    spec: VisionSpec, rows: int, columns: int
) -> None:
    layout = PatchLayout.of(rows, columns, spec)
    patches = np.stack([layout.order, -layout.order], axis=1).astype(np.float32)
    cells = layout.merge(patches, spec).reshape(rows // 2, columns // 2, 2, 2, 2)
    index = np.arange(rows * columns).reshape(rows, columns)
    for top in range(rows // 2):
        for left in range(columns // 2):
            cell = index[2 * top : 2 * top + 2, 2 * left : 2 * left + 2]
            np.testing.assert_array_equal(cells[top, left], [cell, -cell])


def test_patches_are_what_a_convolution_sees(spec: VisionSpec) -> None:
    patch = spec.patch_size
    image = torch.rand(3, 2 * patch, 4 * patch)
    kernel = torch.rand(5, 3, patch, patch)
    expected = torch.nn.functional.conv2d(image[None], kernel, stride=patch)[0].flatten(1).T
    found = split_patches(image.numpy(), spec) @ kernel.flatten(1).T.numpy()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4)
