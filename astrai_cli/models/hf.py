"""Hugging Face folders: `config.json` and safetensors as a model's spec and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astrai_cli.closing import Closing
from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import ROPE_FACTORS, expected_tensors
from astrai_cli.models.hf_config import HfConfig, model_spec, read_json, vision_spec
from astrai_cli.models.safetensors import SafetensorsFile
from astrai_cli.models.vision_spec import CHANNELS, PATCH_EMBEDDING, vision_tensors

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_SHARDS = 4096

LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.gate_proj": "attn_gate",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Norms before and behind both sub-layers; with them one name means another norm.
POST_NORM_TENSORS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OUTER_TENSORS = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_VISION = {
    "vision_tower.patch_embedder.patch_embedding": "v.patch_embd",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd",
    "vision_tower.ln_pre": "v.pre_ln",
    "vision_tower.ln_post": "v.post_ln",
    "vision_adapter.fc1": "mm.0",
    "vision_adapter.fc2": "mm.1",
    "vision_projection": "mm.2",
}
_VISION_LAYER = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_HEAD_NORM = re.compile(r"blk\.\d+\.attn_([qk])_norm\.weight")
_NAME = re.compile(
    r"(?P<root>(?:model\.)?(?:language_model\.)?)"
    r"(?P<tower>vision_tower\.)?(?:layers\.(?P<layer>\d+)\.)?"
    r"(?P<module>[\w.]+)\.(?P<kind>weight|bias)"
)


def is_hf_folder(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file()


class HfFolder(Closing):
    """An open folder of a decoder that astrai runs, under the names GGUF files have.

    The order of rotary components is the half-split one already. Close it, or use it in
    a `with`.
    """

    def __init__(self, path: Path) -> None:
        """Check config and tensors. Raises ModelFileError."""
        self.path = path
        self.config = HfConfig.read(path / CONFIG_NAME)
        self.spec = model_spec(self.config, path.name)
        self.shapes = expected_tensors(self.spec)
        self.shapes.pop(ROPE_FACTORS, None)
        self._shards: dict[str, SafetensorsFile] = {}
        try:
            for name in _shard_names(path):
                self._shards[name] = SafetensorsFile(path / name)
            self._places = self._find_tensors()
            self._check(self.shapes)
        except BaseException:
            self.close()
            raise

    def get(self, name: str) -> NDArray[np.float32]:
        """The whole tensor: float32, a matrix as [out, in], a vector as [n].

        Raises ModelFileError for an unknown name and for values that are not finite.
        """
        constant = self._head_norm(name)
        return self._read(name, None) if constant is None else constant

    def get_rows(self, name: str, rows: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Only these rows of a matrix: float32 [len(rows), in]."""
        return self._read(name, np.asarray(rows, dtype=np.int64))

    @property
    def files(self) -> list[Path]:
        """The files that spec and weights are read from."""
        return [self.path / name for name in (CONFIG_NAME, *self._shards)]

    def stored_tensors(self) -> Iterator[tuple[str, int, int]]:
        """The type, the number of values and the bytes of each tensor."""
        for shard in self._shards.values():
            for tensor in shard.tensors.values():
                yield tensor.kind, tensor.n_values, tensor.n_bytes

    def vision(self) -> HfVision | None:
        """The folder's vision tower, where it has one. Raises ModelFileError."""
        return HfVision(self) if self.config.has("vision_config") else None

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor in its file. Raises ModelFileError for an unknown name."""
        shard, stored = self._place(name)
        return shard.tensors[stored].shape

    def stored(self, name: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """A tensor as its file has it. Raises ModelFileError for values that are not finite."""
        shard, stored = self._place(name)
        values = shard.read(stored, rows)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{shard.path}: tensor {stored!r} holds values not finite")
        return values

    def _read(self, name: str, rows: NDArray[np.int64] | None) -> NDArray[np.float32]:
        values = self.stored(name, rows)
        # Stored as the difference from 1, but for the last norm.
        centred = self.spec.post_norm_eps is not None and values.ndim == 1
        return values + np.float32(1) if centred and name.startswith("blk.") else values

    def _head_norm(self, name: str) -> NDArray[np.float32] | None:
        """Norms of query and key heads that the config gives as one number."""
        which = _HEAD_NORM.fullmatch(name)
        if which is None or not self.spec.gated_attention:
            return None
        gain = 1.0
        if which[1] == "q":
            gain = self.config.part("text_config").number("qk_scale_factor", 1e-6, 1e6)
        return np.full(self.spec.head_width, gain, dtype=np.float32)

    def _place(self, name: str) -> tuple[SafetensorsFile, str]:
        try:
            return self._places[name]
        except KeyError:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing") from None

    def _find_tensors(self) -> Mapping[str, tuple[SafetensorsFile, str]]:
        places: dict[str, tuple[SafetensorsFile, str]] = {}
        for shard in self._shards.values():
            for stored in shard.tensors:
                name = self._our_name(stored)
                if name in places:
                    raise ModelFileError(f"{self.path}: tensor {stored!r} is there twice")
                if name is not None:
                    places[name] = (shard, stored)
        return places

    def _our_name(self, stored: str) -> str | None:
        """What GGUF calls a tensor; None for those that are not read."""
        match = _NAME.fullmatch(stored)
        if match is None or stored.endswith("rotary_emb.inv_freq"):
            raise ModelFileError(f"{self.path}: tensor {stored[:80]!r} is not known")
        module, layer, kind = match["module"], match["layer"], match["kind"]
        if match["tower"] and layer is not None:
            ours = _VISION_LAYER.get(module)
            prefix = f"v.blk.{layer}."
        elif layer is not None:
            post = POST_NORM_TENSORS if self.spec.post_norm_eps is not None else {}
            ours = post.get(module) or LAYER_TENSORS.get(module)
            prefix = f"blk.{layer}."
        else:
            ours = _VISION.get((match["tower"] or "") + module) or OUTER_TENSORS.get(module)
            prefix = ""
        if ours is None:
            raise ModelFileError(f"{self.path}: tensor {stored[:80]!r} is not known")
        # A tied head may be stored all the same.
        return None if ours == "output" and self.spec.tied_head else f"{prefix}{ours}.{kind}"

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            if self._head_norm(name) is None and self.stored_shape(name) != shape:
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} has the shape {list(self.stored_shape(name))}, "
                    f"must be {list(shape)}"
                )
        for name in self._places:
            if name not in shapes and not name.startswith(("v.", "mm.")):
                raise ModelFileError(
                    f"{self.path}: tensor {name!r} is not part of {self.spec.architecture!r}"
                )


class HfVision:
    """The vision tower of an open folder, under the names and in the shapes of GGUF files."""

    def __init__(self, folder: HfFolder) -> None:
        self.spec = vision_spec(folder.config)
        self._folder = folder
        self._frames = folder.config.part("vision_config").integer("patch_temporal", 1, 16)
        patch_values = self._frames * CHANNELS * self.spec.patch_size**2
        shapes = vision_tensors(self.spec) | {PATCH_EMBEDDING: (self.spec.width, patch_values)}
        for name, shape in shapes.items():
            if folder.stored_shape(name) != shape:
                raise ModelFileError(
                    f"{folder.path}: tensor {name!r} has the shape "
                    f"{list(folder.stored_shape(name))}, must be {list(shape)}"
                )

    def get(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32. Raises ModelFileError."""
        values = self._folder.stored(name)
        if name != PATCH_EMBEDDING:
            return values
        # A still image fills every frame of a patch with the same pixels.
        patch = self.spec.patch_size
        frames = values.reshape(self.spec.width, self._frames, CHANNELS, patch, patch)
        summed: NDArray[np.float32] = frames.sum(axis=1, dtype=np.float32)
        return summed


def _shard_names(path: Path) -> list[str]:
    if not (path / INDEX_NAME).is_file():
        return [WEIGHTS_NAME]
    places = read_json(path / INDEX_NAME).get("weight_map")
    if not isinstance(places, dict):
        raise ModelFileError(f"{path / INDEX_NAME} has no 'weight_map'")
    names = sorted({str(name) for name in places.values()})
    if len(names) > MAX_SHARDS:
        raise ModelFileError(f"{path / INDEX_NAME} names {len(names)} files, over {MAX_SHARDS}")
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise ModelFileError(f"{path / INDEX_NAME} names {name[:80]!r}, not a file beside it")
    return names
