"""What a vision tower is, and the `--mmproj` file that holds one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf import GGUFFile, can_dequantize
from astrai_cli.models.gguf_header import TensorInfo
from astrai_cli.models.metadata import Metadata
from astrai_cli.models.spec import MUSE_GLIMMER

CHANNELS = 3
PATCH_EMBEDDING = "v.patch_embd.weight"
POSITION_TABLE = "v.position_embd.weight"
_ROTARY_ROWS = re.compile(r"v\.blk\.\d+\.attn_[qk]\.(?:weight|bias)")


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """A vision transformer over patches, with a projector to the text model's width.

    patch_size: pixels a patch is wide and high. merge: patches a cell is wide and high;
    a cell becomes one row of embeddings. grid_side: patches that the learnt position
    table is wide and high, which is also the size of a tile. projector_width: between
    the projector's matrices. mean, deviation: of each colour, from 0 to 1.
    """

    n_layers: int
    width: int
    ffn_width: int
    n_heads: int
    patch_size: int
    merge: int
    grid_side: int
    projector_width: int
    text_width: int
    norm_eps: float
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    rope_base: float = 10000.0

    @property
    def head_width(self) -> int:
        return self.width // self.n_heads

    @property
    def cell_size(self) -> int:
        """Pixels a cell is wide and high."""
        return self.patch_size * self.merge

    def sees_all(self, layer: int) -> bool:
        """Whether a layer attends across the whole image, not within tiles."""
        return (layer + 1) % 4 == 0 or layer == self.n_layers - 1


class VisionFile(GGUFFile):
    """A GGUF file of a vision tower: its tensors are exactly those of its spec."""

    spec: VisionSpec

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.spec = read_vision_spec(self.metadata, self.tensors)
            self._check_tensors()
        except BaseException:
            self.close()
            raise

    def get(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32; query and key rows in half-split rotary order (see RopeSpec).

        Raises ModelFileError for an unknown name and for values that are not finite.
        """
        values = self.finite(name)
        if not _ROTARY_ROWS.fullmatch(name):
            return values
        heads = values.reshape(self.spec.n_heads, self.spec.head_width, -1)
        return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(values.shape)

    def _check_tensors(self) -> None:
        expected = vision_tensors(self.spec)
        for name, shape in expected.items():
            found = self.tensor(name)
            if found.shape != shape:
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} has the shape {list(found.shape)}, "
                    f"must be {list(shape)}"
                )
            if not can_dequantize(found.type):
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} is stored as {found.type.name}, "
                    "which cannot be read"
                )
        for name in self.tensors:
            if name not in expected:
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} is not part of a {MUSE_GLIMMER!r}"
                )


def read_vision_spec(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> VisionSpec:
    """The spec that the metadata describe; raises ModelFileError where they cannot be right."""
    if metadata.text("general.architecture") != "clip":
        raise metadata.error("general.architecture", "'clip': a vision tower")
    if metadata.text("clip.projector_type") != MUSE_GLIMMER:
        raise metadata.error("clip.projector_type", repr(MUSE_GLIMMER))
    width = metadata.integer("clip.vision.embedding_length", 4, 2**16)
    n_heads = metadata.integer("clip.vision.attention.head_count", 1, 1024)
    if width % (4 * n_heads):
        # Half of a head turns by the column and half by the row, in pairs.
        raise metadata.error("clip.vision.embedding_length", f"a multiple of {4 * n_heads}")
    return VisionSpec(
        n_layers=metadata.integer("clip.vision.block_count", 1, 1024),
        width=width,
        ffn_width=metadata.integer("clip.vision.feed_forward_length", 1, 2**18),
        n_heads=n_heads,
        patch_size=metadata.integer("clip.vision.patch_size", 1, 256),
        merge=metadata.integer("clip.vision.spatial_merge_size", 2, 2, default=2),
        grid_side=math.isqrt(_rows_of(metadata, tensors, POSITION_TABLE)),
        projector_width=_rows_of(metadata, tensors, "mm.0.weight"),
        text_width=metadata.integer("clip.vision.projection_dim", 1, 2**17),
        norm_eps=metadata.number("clip.vision.attention.layer_norm_epsilon", 0.0, 1.0),
        mean=_colours(metadata, "clip.vision.image_mean", 0.0),
        deviation=_colours(metadata, "clip.vision.image_std", 1e-3),
    )


def _rows_of(metadata: Metadata, tensors: Mapping[str, TensorInfo], name: str) -> int:
    if name not in tensors or len(tensors[name].shape) != 2:
        raise metadata.error("clip.projector_type", f"of a file with the matrix {name!r}")
    return tensors[name].shape[0]


def _colours(metadata: Metadata, key: str, low: float) -> tuple[float, float, float]:
    values = metadata.numbers(key)
    if len(values) != CHANNELS or not all(low <= value <= 1.0 for value in values):
        raise metadata.error(key, f"{CHANNELS} numbers from {low:g} to 1, one a colour")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def vision_tensors(spec: VisionSpec) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor of a tower, in the order they are used."""
    width, ffn_width = spec.width, spec.ffn_width
    layer: dict[str, tuple[int, ...]] = {}
    for name in ("ln1", "ln2"):
        layer |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        layer |= {f"{name}.weight": (width, width), f"{name}.bias": (width,)}
    layer |= {"ffn_up.weight": (ffn_width, width), "ffn_up.bias": (ffn_width,)}
    layer |= {"ffn_down.weight": (width, ffn_width), "ffn_down.bias": (width,)}
    expected: dict[str, tuple[int, ...]] = {
        PATCH_EMBEDDING: (width, CHANNELS, spec.patch_size, spec.patch_size),
        POSITION_TABLE: (spec.grid_side**2, width),
        "v.pre_ln.weight": (width,),
        "v.pre_ln.bias": (width,),
    }
    for index in range(spec.n_layers):
        expected |= {f"v.blk.{index}.{name}": shape for name, shape in layer.items()}
    return expected | {
        "v.post_ln.weight": (width,),
        "v.post_ln.bias": (width,),
        "mm.0.weight": (spec.projector_width, spec.merge**2 * width),
        "mm.1.weight": (spec.projector_width, spec.projector_width),
        "mm.2.weight": (spec.text_width, spec.projector_width),
    }


def normalised(pixels: NDArray[np.uint8], spec: VisionSpec) -> NDArray[np.float32]:
    """Pixels uint8 [height, width, 3] as the tower takes them: float32 [3, height, width]."""
    mean, deviation = (np.array(x, dtype=np.float32) for x in (spec.mean, spec.deviation))
    values = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
    return np.ascontiguousarray(values.transpose(2, 0, 1))
