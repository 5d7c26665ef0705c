"""A Hugging Face `config.json` as a ModelSpec or VisionSpec."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import ARCHITECTURES, INT32_MAX
from astrai_cli.models.spec import MUSE_GLIMMER, ModelSpec, RopeSpec
from astrai_cli.models.vision_spec import VisionSpec

MAX_JSON_BYTES = 2**24
# The name of an architecture here, and in GGUF files.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "muse_glimmer": MUSE_GLIMMER,
}
WINDOWED = ("sliding_attention", "window_attention")


@dataclass(frozen=True)
class HfConfig:
    """One JSON object with typed, bounded getters, each of which raises ModelFileError.

    A getter with a default gives it where the key is missing or null.
    """

    values: Mapping[str, Any]
    label: str

    @classmethod
    def read(cls, path: Path) -> HfConfig:
        return cls(read_json(path), str(path))

    def error(self, key: str, wanted: str) -> ModelFileError:
        return ModelFileError(
            f"{self.label}: {key!r} is {self.values.get(key)!r:.80}, must be {wanted}"
        )

    def part(self, key: str) -> HfConfig:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return HfConfig(value, f"{self.label}: {key}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.values[key] if self.has(key) else default
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.values[key] if self.has(key) else default
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise self.error(key, f"a number from {low:g} to {high:g}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def must_be(self, key: str, wanted: Any) -> None:
        """Refuse a variant of the architecture; a missing key is the usual one."""
        if self.has(key) and self.values[key] != wanted:
            raise self.error(key, repr(wanted))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelFileError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path} has more than {MAX_JSON_BYTES} bytes")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path} is not JSON") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path} is not a JSON object")
    return values


def model_spec(config: HfConfig, name: str) -> ModelSpec:
    """The spec of the text model. Raises ModelFileError for what astrai does not run."""
    model_type = config.text("model_type")
    if model_type not in MODEL_TYPES:
        raise config.error("model_type", f"one of {', '.join(MODEL_TYPES)}")
    architecture = ARCHITECTURES[MODEL_TYPES[model_type]]
    text = config.part("text_config") if config.has("text_config") else config
    for key in ("hidden_act", "hidden_activation"):
        text.must_be(key, "silu")
    text.must_be("mlp_bias", False)
    n_layers = text.integer("num_hidden_layers", 1, 1024)
    width = text.integer("hidden_size", 1, 2**17)
    n_heads = text.integer("num_attention_heads", 1, 1024)
    n_kv_heads = text.integer("num_key_value_heads", 1, 1024, default=n_heads)
    if n_heads % n_kv_heads:
        raise text.error("num_attention_heads", f"a multiple of {n_kv_heads}")
    head_width = text.integer("head_dim", 2, 1024, default=width // n_heads)
    if head_width % 2:
        raise text.error("head_dim", "even")
    if architecture.qkv_bias is False:
        text.must_be("attention_bias", False)
    windows = _windows(text, n_layers, architecture.global_every)
    if architecture.global_every is not None:
        _check_rotated_layers(text, windows)
    if architecture.post_norm_eps is not None:
        text.must_be("post_norm_eps", architecture.post_norm_eps)
    scaled = architecture.scaled_logits
    return ModelSpec(
        architecture=MODEL_TYPES[model_type],
        name=name,
        n_layers=n_layers,
        width=width,
        ffn_width=text.integer("intermediate_size", 1, 2**20),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_width=head_width,
        vocab_size=text.integer("vocab_size", 1, 2**24),
        context_length=text.integer("max_position_embeddings", 1, INT32_MAX),
        norm_eps=text.number("rms_norm_eps", 0.0, 1.0),
        rope=_rope(text, head_width),
        tied_head=text.flag("tie_word_embeddings", False),
        qkv_bias=architecture.qkv_bias or text.flag("attention_bias", False),
        qk_norm=architecture.qk_norm,
        windows=windows,
        windows_rotate_alone=architecture.global_every is not None,
        embedding_norm=architecture.embedding_norm,
        gated_attention=architecture.gated_attention,
        post_norm_eps=architecture.post_norm_eps,
        logit_scale=text.number("output_multiplier", 1e-30, 1e6) if scaled else 1.0,
        logit_cap=text.number("final_logit_softcapping", 1e-30, 1e6) if scaled else None,
    )


def _windows(text: HfConfig, n_layers: int, global_every: int | None) -> tuple[int | None, ...]:
    slides = text.has("sliding_window") and text.flag("use_sliding_window", True)
    if not slides and global_every is None:
        return (None,) * n_layers
    window = text.integer("sliding_window", 1, INT32_MAX)
    kinds = text.values.get("layer_types")
    if kinds is None and global_every is None:
        first = text.integer("max_window_layers", 0, n_layers, default=0)
        kinds = ["full_attention"] * first + [WINDOWED[0]] * (n_layers - first)
    elif kinds is None:
        every = global_every or n_layers
        kinds = [
            "full_attention" if (n_layers - 1 - layer) % every == 0 else WINDOWED[0]
            for layer in range(n_layers)
        ]
    if not isinstance(kinds, list) or len(kinds) != n_layers:
        raise text.error("layer_types", f"{n_layers} kinds, one a layer")
    return tuple(window if kind in WINDOWED else None for kind in kinds)


def _check_rotated_layers(text: HfConfig, windows: tuple[int | None, ...]) -> None:
    bases = text.values.get("layer_rope_theta")
    if bases is None:
        return
    base = _rope_part(text).number("rope_theta", 1.0, 1e12)
    if bases != [0 if window is None else base for window in windows]:
        raise text.error("layer_rope_theta", f"{base:g} in layers that slide and 0 in others")


def _rope_part(text: HfConfig) -> HfConfig:
    """Where the numbers of rotary embeddings are: in an object of their own, or loose."""
    if text.has("rope_parameters"):
        return text.part("rope_parameters")
    scaling = text.values.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise text.error("rope_scaling", "an object")
    return HfConfig({"rope_theta": text.values.get("rope_theta", 10000.0), **scaling}, text.label)


def _rope(text: HfConfig, head_width: int) -> RopeSpec:
    part = _rope_part(text)
    text.must_be("partial_rotary_factor", 1.0)
    base = part.number("rope_theta", 1.0, 1e12)
    kind = part.text("rope_type", part.text("type", "default"))
    if kind == "default":
        return RopeSpec(base, head_width)
    factor = part.number("factor", 1e-3, 1e6)
    if kind == "linear":
        return RopeSpec(base, head_width, scale=factor)
    if kind == "llama3":
        return RopeSpec(base, head_width, factors=_llama3_factors(part, base, head_width, factor))
    raise part.error("rope_type", "'default', 'linear' or 'llama3'")


def _llama3_factors(
    part: HfConfig, base: float, head_width: int, factor: float
) -> tuple[float, ...]:
    """What divides each frequency: 1 for short wavelengths, `factor` for long, between between."""
    low = part.number("low_freq_factor", 1e-3, 1e6)
    high = part.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise part.error("high_freq_factor", f"above {low:g}")
    original = part.integer("original_max_position_embeddings", 1, INT32_MAX)
    factors = []
    for pair in range(head_width // 2):
        turns = original * base ** (-2 * pair / head_width) / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)


def vision_spec(config: HfConfig) -> VisionSpec:
    """The spec of the folder's vision tower. Raises ModelFileError."""
    vision, text = config.part("vision_config"), config.part("text_config")
    vision.must_be("hidden_act", "gelu")
    config.must_be("projector_hidden_act", "gelu")
    width = vision.integer("hidden_size", 4, 2**16)
    n_heads = vision.integer("num_attention_heads", 1, 1024)
    if width % (4 * n_heads):
        raise vision.error("hidden_size", f"a multiple of {4 * n_heads}")
    side = vision.integer("pos_emb_height", 1, 1024)
    vision.must_be("pos_emb_width", side)
    spec = VisionSpec(
        n_layers=vision.integer("num_hidden_layers", 1, 1024),
        width=width,
        ffn_width=vision.integer("intermediate_size", 1, 2**18),
        n_heads=n_heads,
        patch_size=vision.integer("patch_size", 1, 256),
        merge=vision.integer("merge_size", 2, 2, default=2),
        grid_side=side,
        projector_width=config.integer("projector_hidden_size", 1, 2**17),
        text_width=text.integer("hidden_size", 1, 2**17),
        norm_eps=vision.number("layer_norm_eps", 0.0, 1.0, default=1e-5),
        mean=(0.5, 0.5, 0.5),
        deviation=(0.5, 0.5, 0.5),
        rope_base=vision.part("rope_parameters").number("rope_theta", 1.0, 1e12),
    )
    kinds = vision.values.get("layer_types")
    wanted = [
        "full_attention" if spec.sees_all(layer) else "window_attention"
        for layer in range(spec.n_layers)
    ]
    if kinds is not None and kinds != wanted:
        raise vision.error("layer_types", "full attention in every fourth layer and the last")
    return spec
