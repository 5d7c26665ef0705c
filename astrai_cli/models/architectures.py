"""The architectures astrai runs: one mapping each from GGUF metadata to a ModelSpec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf_header import TensorInfo
from astrai_cli.models.metadata import Metadata
from astrai_cli.models.spec import MUSE_GLIMMER, ModelSpec, RopeSpec

INT32_MAX = 2**31 - 1
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a GGUF architecture name says beyond the file's keys.

    neighbour_rope: the file's query and key rows pair rotary components (2i, 2i + 1).
    qkv_bias: whether query, key and value carry biases; None: as the file has them.
    qk_norm: whether each query and key head is normalised.
    global_every: counted back from the last layer, every such layer has no window, unless
        the file says which; the others must have one, and they alone rotate.
    embedding_norm, gated_attention, post_norm_eps: see ModelSpec.
    scaled_logits: the file gives ModelSpec's logit scale and cap.
    """

    neighbour_rope: bool
    qkv_bias: bool | None
    qk_norm: bool
    global_every: int | None = None
    embedding_norm: bool = False
    gated_attention: bool = False
    post_norm_eps: float | None = None
    scaled_logits: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(neighbour_rope=True, qkv_bias=None, qk_norm=False),
    "qwen2": Architecture(neighbour_rope=False, qkv_bias=True, qk_norm=False),
    "qwen3": Architecture(neighbour_rope=False, qkv_bias=None, qk_norm=True),
    MUSE_GLIMMER: Architecture(
        neighbour_rope=True,
        qkv_bias=False,
        qk_norm=True,
        global_every=4,
        embedding_norm=True,
        gated_attention=True,
        post_norm_eps=1e-8,
        scaled_logits=True,
    ),
}

_FORMER_GATE = re.compile(r"(blk\.\d+)\.attn_output_gate\.weight")


def current_name(tensor: str) -> str:
    """What a tensor is called now; older files call the attention's gate otherwise."""
    return _FORMER_GATE.sub(r"\1.attn_gate.weight", tensor)


def architecture_of(metadata: Metadata) -> str:
    """The file's architecture, one of ARCHITECTURES; raises ModelFileError for another."""
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise metadata.error("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    return name


def read_spec(
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    rope_factors: tuple[float, ...] | None,
    fallback_name: str,
) -> ModelSpec:
    """The spec that the metadata describe; raises ModelFileError where they cannot be right.

    rope_factors: the values of the file's ROPE_FACTORS tensor, where it has one.
    """
    name = architecture_of(metadata)
    architecture = ARCHITECTURES[name]
    n_layers = metadata.integer(f"{name}.block_count", 1, 1024)
    width = metadata.integer(f"{name}.embedding_length", 1, 2**17)
    n_heads = metadata.integer(f"{name}.attention.head_count", 1, 1024)
    n_kv_heads = metadata.integer(f"{name}.attention.head_count_kv", 1, 1024, default=n_heads)
    if n_heads % n_kv_heads:
        raise metadata.error(f"{name}.attention.head_count", f"a multiple of {n_kv_heads}")
    head_width = _head_width(metadata, name, width, n_heads)
    if metadata.integer(f"{name}.expert_count", 0, INT32_MAX, default=0):
        raise metadata.error(f"{name}.expert_count", "0: mixtures of experts are not supported")
    qkv_bias = architecture.qkv_bias
    logit_scale, logit_cap = _read_logit_scale(metadata, name)
    return ModelSpec(
        architecture=name,
        name=metadata.text("general.name", fallback_name),
        n_layers=n_layers,
        width=width,
        ffn_width=metadata.integer(f"{name}.feed_forward_length", 1, 2**20),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_width=head_width,
        vocab_size=metadata.length("tokenizer.ggml.tokens"),
        context_length=metadata.integer(f"{name}.context_length", 1, INT32_MAX),
        norm_eps=metadata.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_read_rope(metadata, name, head_width, rope_factors),
        tied_head="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors if qkv_bias is None else qkv_bias,
        qk_norm=architecture.qk_norm,
        windows=_read_windows(metadata, name, n_layers),
        windows_rotate_alone=architecture.global_every is not None,
        embedding_norm=architecture.embedding_norm,
        gated_attention=architecture.gated_attention,
        post_norm_eps=architecture.post_norm_eps,
        logit_scale=logit_scale,
        logit_cap=logit_cap,
    )


def read_draft_layers(metadata: Metadata, name: str, fallback_name: str) -> ModelSpec:
    """The spec of a block draft's layers, whose embedding and head are its target's.

    Raises ModelFileError where the metadata cannot be right.
    """
    n_layers = metadata.integer(f"{name}.block_count", 1, 1024)
    width = metadata.integer(f"{name}.embedding_length", 1, 2**17)
    n_heads = metadata.integer(f"{name}.attention.head_count", 1, 1024)
    n_kv_heads = metadata.integer(f"{name}.attention.head_count_kv", 1, 1024, default=n_heads)
    if n_heads % n_kv_heads:
        raise metadata.error(f"{name}.attention.head_count", f"a multiple of {n_kv_heads}")
    head_width = _head_width(metadata, name, width, n_heads)
    return ModelSpec(
        architecture=name,
        name=metadata.text("general.name", fallback_name),
        n_layers=n_layers,
        width=width,
        ffn_width=metadata.integer(f"{name}.feed_forward_length", 1, 2**20),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_width=head_width,
        vocab_size=metadata.length("tokenizer.ggml.tokens"),
        context_length=metadata.integer(f"{name}.context_length", 1, INT32_MAX),
        norm_eps=metadata.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_read_rope(metadata, name, head_width, None),
        tied_head=False,
        qkv_bias=False,
        qk_norm=True,
        # The file names a sliding window; the model's own implementations see all of the context.
        windows=(None,) * n_layers,
    )


def _head_width(metadata: Metadata, name: str, width: int, n_heads: int) -> int:
    key = f"{name}.attention.key_length"
    if key not in metadata and width % n_heads:
        raise metadata.error(f"{name}.embedding_length", f"a multiple of {n_heads} heads")
    head_width = metadata.integer(key, 2, 1024, default=width // n_heads)
    metadata.integer(f"{name}.attention.value_length", head_width, head_width, default=head_width)
    return head_width


def _read_rope(
    metadata: Metadata, name: str, head_width: int, factors: tuple[float, ...] | None
) -> RopeSpec:
    dimension = metadata.integer(f"{name}.rope.dimension_count", 2, head_width, head_width)
    if dimension % 2:
        raise metadata.error(f"{name}.rope.dimension_count", "even")
    scaling = metadata.text(f"{name}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise metadata.error(f"{name}.rope.scaling.type", "'none' or 'linear'")
    scale = metadata.number(f"{name}.rope.scaling.factor", 0.0, 1e6, default=1.0)
    return RopeSpec(
        base=metadata.number(f"{name}.rope.freq_base", 1.0, 1e12, default=10000.0),
        dimension=dimension,
        # The format's convention: a factor of 0 means that there is none.
        scale=scale if scaling == "linear" and scale > 0.0 else 1.0,
        factors=factors,
    )


def _read_logit_scale(metadata: Metadata, name: str) -> tuple[float, float | None]:
    """The scale and the cap of the logits."""
    if not ARCHITECTURES[name].scaled_logits:
        return 1.0, None
    smallest = float(np.finfo(np.float32).tiny)
    return (
        metadata.number(f"{name}.logit_scale", smallest, 1e6),
        metadata.number(f"{name}.final_logit_softcapping", smallest, 1e6),
    )


def _read_windows(metadata: Metadata, name: str, n_layers: int) -> tuple[int | None, ...]:
    global_every = ARCHITECTURES[name].global_every
    key = f"{name}.attention.sliding_window"
    window = (
        metadata.integer(key, 0, INT32_MAX, default=0)
        if global_every is None
        else metadata.integer(key, 1, INT32_MAX)
    )
    if window == 0:
        return (None,) * n_layers
    key = f"{name}.attention.sliding_window_pattern"
    if key in metadata:
        pattern = metadata.flags(key)
    else:
        pattern = [
            global_every is None or (n_layers - 1 - layer) % global_every != 0
            for layer in range(n_layers)
        ]
    if len(pattern) != n_layers:
        raise metadata.error(key, f"an array of {n_layers} booleans, one a layer")
    return tuple(window if slides else None for slides in pattern)


def tensors_of_layers(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor of the layers, in the order they are used."""
    width, q_width = spec.width, spec.n_heads * spec.head_width
    kv_width = spec.n_kv_heads * spec.head_width
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (q_width, width),
        "attn_k.weight": (kv_width, width),
        "attn_v.weight": (kv_width, width),
        "attn_output.weight": (width, q_width),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (spec.ffn_width, width),
        "ffn_up.weight": (spec.ffn_width, width),
        "ffn_down.weight": (width, spec.ffn_width),
    }
    if spec.qkv_bias:
        layer |= {
            "attn_q.bias": (q_width,),
            "attn_k.bias": (kv_width,),
            "attn_v.bias": (kv_width,),
        }
    if spec.qk_norm:
        layer |= {
            "attn_q_norm.weight": (spec.head_width,),
            "attn_k_norm.weight": (spec.head_width,),
        }
    if spec.gated_attention:
        layer["attn_gate.weight"] = (q_width, width)
    if spec.post_norm_eps is not None:
        layer |= {"post_attention_norm.weight": (width,), "post_ffw_norm.weight": (width,)}
    return {
        f"blk.{index}.{name}": shape
        for index in range(spec.n_layers)
        for name, shape in layer.items()
    }


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor a model of this spec has, in the order they are used."""
    width = spec.width
    expected: dict[str, tuple[int, ...]] = {"token_embd.weight": (spec.vocab_size, width)}
    expected |= tensors_of_layers(spec)
    expected["output_norm.weight"] = (width,)
    if not spec.tied_head:
        expected["output.weight"] = (spec.vocab_size, width)
    if spec.rope.factors is not None:
        expected[ROPE_FACTORS] = (spec.rope.dimension // 2,)
    return expected


def check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo], label: str) -> None:
    """Raise ModelFileError unless the file's tensors are exactly those of `spec`.

    A tensor too many is refused as well: it would take part in a forward pass that
    astrai does not know.
    """
    expected = expected_tensors(spec)
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelFileError(f"{label}: tensor {name!r} is missing")
        if tensors[name].shape != shape:
            raise ModelFileError(
                f"{label}: tensor {name!r} has the shape {list(tensors[name].shape)}, "
                f"must be {list(shape)}"
            )
    for name in tensors:
        if name not in expected:
            raise ModelFileError(
                f"{label}: tensor {name!r} is not part of the architecture {spec.architecture!r}"
            )
