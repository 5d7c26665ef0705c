"""A model spec as mlx-lm's configuration, and what mlx-lm calls the tensors.

mlx-lm's models are narrower than a spec in places. Its llama also stands for a qwen2 that
its own qwen2 cannot express; what none of them expresses is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astrai_cli.errors import InvalidInputError, ModelFileError
from astrai_cli.models.architectures import ROPE_FACTORS
from astrai_cli.models.hf import LAYER_TENSORS, OUTER_TENSORS, POST_NORM_TENSORS
from astrai_cli.models.spec import MUSE_GLIMMER, ModelSpec
from astrai_cli.models.weights import TensorSource

Floats = NDArray[np.float32]
_HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")


@dataclass(frozen=True, slots=True)
class MlxTensor:
    """A tensor of mlx-lm's model.

    source: GGUF's name of what it is made from. module: the path of its module, the
    tensor's name without its last part. offset: added to every value.
    """

    name: str
    source: str
    offset: float = 0.0

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class MlxModel:
    """What to write for mlx-lm: its `config.json`, its tensors, and zeros [n] it wants beside."""

    config: Mapping[str, Any]
    tensors: tuple[MlxTensor, ...]
    zeros: Mapping[str, int]


def describe(weights: TensorSource) -> MlxModel:
    """The model in mlx-lm's terms.

    Raises InvalidInputError for a model that mlx-lm has no form for, and ModelFileError.
    """
    spec = weights.spec
    names = _names(spec)
    tensors = [
        MlxTensor(_mlx_name(source, names), source, _offset(source, spec))
        for source in weights.shapes
        if source != ROPE_FACTORS and not _is_constant(source, spec)
    ]
    config = _config(spec)
    if spec.architecture == MUSE_GLIMMER:
        config |= _muse_config(spec, _query_scale(weights))
    model_type = config["model_type"]
    zeros = {}
    if model_type == "llama" and spec.qkv_bias:
        # This bias is on or off together with the others.
        zeros = {
            f"model.layers.{layer}.self_attn.o_proj.bias": spec.width
            for layer in range(spec.n_layers)
        }
    return MlxModel(config, tuple(tensors), zeros)


def _config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "model_type": _model_type(spec),
        "hidden_size": spec.width,
        "num_hidden_layers": spec.n_layers,
        "intermediate_size": spec.ffn_width,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_width,
        "rms_norm_eps": spec.norm_eps,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_length,
        "rope_theta": spec.rope.base,
        "tie_word_embeddings": spec.tied_head,
        "attention_bias": spec.qkv_bias,
        **_rope_scaling(spec),
        **_layer_types(spec),
    }


def _model_type(spec: ModelSpec) -> str:
    """The module of mlx-lm that runs the spec. Raises InvalidInputError where none does."""
    if spec.rope.dimension != spec.head_width:
        raise _no_form(spec, f"{spec.rope.dimension} of {spec.head_width} components rotate")
    if spec.architecture == MUSE_GLIMMER:
        if spec.rope.factors is not None or spec.rope.scale != 1.0:
            raise _no_form(spec, "scaled rotary positions")
        return "muse_glimmer"
    slides = any(spec.windows)
    if slides and all(spec.windows):
        raise _no_form(spec, "sliding windows in every layer")
    if spec.architecture == "qwen3":
        if slides or spec.qkv_bias:
            raise _no_form(spec, "sliding windows or biases")
        return "qwen3"
    is_plain_qwen2 = not slides and spec.n_heads * spec.head_width == spec.width
    return "qwen2" if spec.architecture == "qwen2" and is_plain_qwen2 else "llama"


def _no_form(spec: ModelSpec, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{spec.name}: mlx-lm has no {spec.architecture} with {what}", param="backend"
    )


def _rope_scaling(spec: ModelSpec) -> dict[str, Any]:
    if spec.rope.factors is not None:
        # Named for long contexts, this kind takes any factors; the two equal lengths keep
        # it from scaling the values too.
        factors = [factor * spec.rope.scale for factor in spec.rope.factors]
        return {
            "rope_scaling": {
                "rope_type": "longrope",
                "original_max_position_embeddings": spec.context_length,
                "long_factor": factors,
                "short_factor": factors,
            }
        }
    if spec.rope.scale != 1.0:
        return {"rope_scaling": {"rope_type": "linear", "factor": spec.rope.scale}}
    return {}


def _layer_types(spec: ModelSpec) -> dict[str, Any]:
    windows = {window for window in spec.windows if window is not None}
    if not windows and not spec.windows_rotate_alone:
        return {}
    kinds = ["full_attention" if w is None else "sliding_attention" for w in spec.windows]
    return {"layer_types": kinds, "sliding_window": max(windows, default=1)}


def _muse_config(spec: ModelSpec, query_scale: float) -> dict[str, Any]:
    return {
        "post_norm_eps": spec.post_norm_eps,
        "qk_scale_factor": query_scale,
        "output_multiplier": spec.logit_scale,
        "final_logit_softcapping": spec.logit_cap,
    }


def _query_scale(weights: TensorSource) -> float:
    """The one number that mlx-lm has for the weights of the norms of query and key heads."""
    scales = set()
    for layer in range(weights.spec.n_layers):
        query, key = (weights.get(f"blk.{layer}.{norm}") for norm in _HEAD_NORMS)
        scales |= {float(scale) for scale in np.unique(query * key)}
        if np.ptp(query) or np.ptp(key) or len(scales) > 1:
            raise ModelFileError(
                f"{weights.spec.name}: the norms of query and key heads in layer {layer} "
                "have different weights, and mlx-lm has one number for all"
            )
    return scales.pop()


def _is_constant(source: str, spec: ModelSpec) -> bool:
    return spec.architecture == MUSE_GLIMMER and source.endswith(_HEAD_NORMS)


def _offset(source: str, spec: ModelSpec) -> float:
    """mlx-lm's muse_glimmer adds 1 to the weights of the norms in its layers."""
    is_layer_norm = source.startswith("blk.") and source.endswith("_norm.weight")
    return -1.0 if spec.architecture == MUSE_GLIMMER and is_layer_norm else 0.0


def _names(spec: ModelSpec) -> Callable[[str], str]:
    """From GGUF's name of a module to mlx-lm's, which is that of the published weights."""
    post = POST_NORM_TENSORS if spec.post_norm_eps is not None else {}
    layer = {ours: theirs for theirs, ours in (LAYER_TENSORS | post).items()}
    outer = {ours: theirs for theirs, ours in OUTER_TENSORS.items()}

    def name(module: str) -> str:
        if not module.startswith("blk."):
            return outer[module] if module == "output" else f"model.{outer[module]}"
        _, index, part = module.split(".")
        return f"model.layers.{index}.{layer[part]}"

    return name


def _mlx_name(source: str, names: Callable[[str], str]) -> str:
    module, _, kind = source.rpartition(".")
    return f"{names(module)}.{kind}"
