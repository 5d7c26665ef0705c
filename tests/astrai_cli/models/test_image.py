"""Images: what is refused before it is decoded, and the grid an image is brought to."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muse_fixtures import IMAGE, MMPROJ
from PIL import Image, ImageOps

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.image import count_rows, image_grid, prepare_image
from astrai_cli.models.vision_spec import VisionFile, normalised

with VisionFile.open(MMPROJ) as file:
    SPEC = file.spec
CELL = SPEC.cell_size


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


def test_an_image_of_whole_cells_keeps_its_pixels() -> None:
    image = prepare_image(IMAGE.read_bytes(), SPEC, 4096)
    assert (image.grid, image.n_rows, image.pixels.shape) == ((5, 3), 15, (140, 84, 3))
    np.testing.assert_array_equal(image.pixels, np.asarray(Image.open(IMAGE).convert("RGB")))
    values = normalised(image.pixels, SPEC)
    assert (values.shape, values.dtype) == ((3, 140, 84), np.float32)
    np.testing.assert_allclose(values[1, 2, 3], image.pixels[2, 3, 1] / 127.5 - 1, atol=1e-6)


def test_resizes_with_lanczos() -> None:
    picture = noise(100, 61)
    image = prepare_image(encoded(picture), SPEC, 4096)
    size = (image.grid[1] * CELL, image.grid[0] * CELL)
    expected = picture.resize(size, Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(image.pixels, np.asarray(expected))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 20000), st.integers(1, 20000), st.integers(4, 20000))
def test_the_grid(width: int, height: int, max_patches: int) -> None:
    rows, columns = image_grid(width, height, CELL, max_patches)
    most = max_patches // 4
    assert rows >= 1
    assert columns >= 1
    assert rows * columns <= most
    exact = height / CELL, width / CELL
    if exact[0] * exact[1] <= most and min(exact) >= 1:
        assert abs(rows - exact[0]) < 1
        assert abs(columns - exact[1]) < 1
    assert image_grid(height, width, CELL, max_patches)[::-1] == pytest.approx(
        (rows, columns), abs=1
    )


@pytest.mark.parametrize(
    ("size", "max_patches", "grid"),
    [
        ((84, 140), 4096, (5, 3)),
        ((1, 1), 4096, (1, 1)),
        ((100, 61), 4096, (2, 3)),  # 2 / 3 is nearer to 0.61 than 2 / 4, 3 / 3 and 3 / 4
        ((42, 42), 4096, (2, 2)),  # as near as 1 × 1, and finer
        ((2800, 2800), 400, (10, 10)),
        ((2800, 2800), 403, (10, 10)),
        ((10000, 10), 64, (1, 16)),
        ((10, 10000), 64, (16, 1)),
    ],
)
def test_grids_by_hand(size: tuple[int, int], max_patches: int, grid: tuple[int, int]) -> None:
    assert image_grid(*size, CELL, max_patches) == grid


def test_refuses_a_cap_below_one_cell() -> None:
    with pytest.raises(InvalidInputError, match="max_vision_patches is 3"):
        image_grid(10, 10, CELL, 3)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1"])
def test_every_kind_of_colour_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    assert prepare_image(encoded(noise(56, 56, mode), kind), SPEC, 4096).pixels.shape == (56, 56, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(10))
def test_turns_a_photograph_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(noise(84, 56), kind, exif=exif)
    image = prepare_image(data, SPEC, 4096)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(image.pixels, np.asarray(upright))
    assert image.grid == ((3, 2) if 5 <= orientation <= 8 else (2, 3))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(4, 400), st.integers(1, 8))
def test_rows_are_counted_without_decoding(
    width: int, height: int, max_patches: int, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.new("L", (width, height)), exif=exif)
    counted = count_rows(data[: data.index(b"IDAT") + 4], CELL, max_patches)
    assert counted == prepare_image(data, SPEC, max_patches).n_rows


@pytest.mark.parametrize("data", [b"", b"GIF89a", encoded(Image.new("1", (9000, 9000)))])
def test_rows_of_what_is_no_image_are_not_counted(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        count_rows(data, CELL, 4096)


def test_odd_metadata_is_passed_over(recwarn: pytest.WarningsRecorder) -> None:
    """A width declared as text, which trips up whoever writes the metadata again."""
    entries = struct.pack("<HHI4s", 0x100, 2, 2, b"a") + struct.pack("<HHIHH", 0x112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entries + b"\0" * 4
    assert prepare_image(encoded(noise(84, 56), "JPEG", exif=exif), SPEC, 4096).grid == (3, 2)
    assert not recwarn.list


def test_sixteen_bits_of_grey_keep_their_shades() -> None:
    shades = np.linspace(0, 65535, 28 * 28).astype(np.uint16).reshape(28, 28)
    pixels = prepare_image(encoded(Image.fromarray(shades), "PNG"), SPEC, 4096).pixels
    assert np.abs(pixels[..., 0].astype(float) - shades / 257).max() <= 0.5


def test_the_digest_tells_images_and_grids_apart() -> None:
    image = IMAGE.read_bytes()
    same = encoded(Image.open(IMAGE), compress_level=1)
    other = encoded(noise(84, 140))
    digests = [
        prepare_image(data, SPEC, patches).digest
        for data, patches in [
            (image, 4096),
            (same, 4096),
            (image, 8),
            (other, 4096),
        ]
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def huge_png() -> bytes:
    """A few bytes that claim 60000 × 60000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a JPEG or PNG"),
        (b"not an image", "not a JPEG or PNG"),
        (encoded(noise(40, 40), "GIF"), "not a JPEG or PNG"),
        (encoded(noise(40, 40), "WEBP"), "not a JPEG or PNG"),
        (encoded(noise(40, 40))[:500], "cannot be decoded"),
        (encoded(noise(40, 40), "JPEG")[:700], "cannot be decoded"),
        (huge_png(), "60000|pixels"),
        (encoded(Image.new("1", (8193, 8193))), "8193 x 8193 pixels, over 67108864"),
    ],
    ids=["empty", "text", "gif", "webp", "short-png", "short-jpeg", "bomb", "too-large"],
)
def test_refuses(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        prepare_image(data, SPEC, 4096)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_decoded(data: st.DataObject) -> None:
    content = bytearray(encoded(noise(30, 30), data.draw(st.sampled_from(["PNG", "JPEG"]))))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        image = prepare_image(bytes(content), SPEC, 64)
    except InvalidInputError:
        return
    assert image.n_rows <= 16
