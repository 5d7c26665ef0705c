"""From a compressed image to the pixels that a vision tower is given."""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from astrai_cli.errors import InvalidInputError
from astrai_cli.models.vision_spec import VisionSpec

PATCH_TOKEN = "<|patch|>"
IMAGE_FRAME = ("<|image_start|>", PATCH_TOKEN, "<|image_end|>")
"""Stands for an image in a prompt: its name in the vocabulary."""

FORMATS = ("JPEG", "PNG")
# 64 megapixels: a phone's full photograph; 200 MB as decoded RGB.
MAX_PIXELS = 2**26
PATCHES_A_CELL = 4

# By the values of EXIF's orientation (Exif 2.32, 4.6.4): how the first row and column lie.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = {_TURNS[5], _TURNS[6], _TURNS[7], _TURNS[8]}


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image at the size of its grid.

    pixels: uint8 [height, width, 3], RGB, whole cells high and wide. grid: cells (rows,
    columns). digest: of the image as decoded, before it was resized, and of the grid.
    """

    pixels: NDArray[np.uint8]
    grid: tuple[int, int]
    digest: bytes

    @property
    def n_rows(self) -> int:
        """Rows of embeddings it becomes, each a position of the text model."""
        return self.grid[0] * self.grid[1]


def prepare_image(data: bytes, spec: VisionSpec, max_patches: int) -> PreparedImage:
    """Decode a JPEG or PNG and resize it to its grid. Raises InvalidInputError."""
    image = _decode(data)
    grid = image_grid(image.width, image.height, spec.cell_size, max_patches)
    digest = hashlib.sha256(repr((image.size, grid)).encode())
    digest.update(image.tobytes())
    height, width = (cells * spec.cell_size for cells in grid)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    return PreparedImage(np.asarray(image, dtype=np.uint8), grid, digest.digest())


def count_rows(data: bytes, cell_size: int, max_patches: int) -> int:
    """The rows of embeddings that an image becomes, told by its header.

    cell_size: pixels. Raises InvalidInputError; damage behind the header is not noticed.
    """
    with _decoding():
        image = _open(data)
        turn = _turn(image)
    size = image.size[::-1] if turn in _ON_ITS_SIDE else image.size
    return math.prod(image_grid(*size, cell_size, max_patches))


def image_grid(width: int, height: int, cell_size: int, max_patches: int) -> tuple[int, int]:
    """The cells (rows, columns) of an image of width × height pixels, both 1 or more.

    At most max_patches // 4 cells. Of the counts around the exact ones those whose
    aspect ratio is nearest to the image's; of equally near ones the most cells.
    """
    most = max_patches // PATCHES_A_CELL
    if most < 1:
        raise InvalidInputError(f"max_vision_patches is {max_patches}; a cell has {PATCHES_A_CELL}")
    rows, columns = height / cell_size, width / cell_size
    if rows * columns > most:
        rows = math.sqrt(most * height / width)
        columns = rows * width / height
    candidates = [
        (r, c)
        for r in {math.floor(rows), math.ceil(rows)}
        for c in {math.floor(columns), math.ceil(columns)}
        if r >= 1 and c >= 1 and r * c <= most
    ]
    if not candidates:
        # So long an image that its short side has less than one cell within the cap.
        return (1, min(round(columns), most)) if rows < columns else (min(round(rows), most), 1)
    return min(candidates, key=lambda grid: (abs(grid[0] / grid[1] - height / width), -grid[0]))


def _decode(data: bytes) -> Image.Image:
    with _decoding():
        image = _open(data)
        turn = _turn(image)
        return _to_rgb(image if turn is None else image.transpose(turn))


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn whatever an image makes its decoder raise into an InvalidInputError."""
    try:
        with warnings.catch_warnings():
            # Its own bound on pixels is looser than ours, and oddities of a file are no news.
            warnings.simplefilter("ignore")
            yield
    except InvalidInputError:
        raise
    except UnidentifiedImageError:
        raise InvalidInputError("the image is not a JPEG or PNG file") from None
    # Damaged files make the decoders raise whatever they trip over.
    except Exception as error:
        raise InvalidInputError(f"the image cannot be decoded: {error}") from error


def _open(data: bytes) -> Image.Image:
    """An image of which nothing but the header was read."""
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        raise InvalidInputError(
            f"the image has {image.width} x {image.height} pixels, over {MAX_PIXELS}"
        )
    return image


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What brings an image upright, as the metadata before its pixels tells."""
    # The method of PNG images would decode the pixels to look for metadata behind them.
    return _TURNS.get(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits of grey, which converting would cut off at 255.
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    return image.convert("RGB")
