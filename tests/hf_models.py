"""Random Hugging Face models, saved as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    PreTrainedModel,
)

PATCH_TOKEN = 90

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}


def randomise(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Random weights, norms and biases included, of a size that keeps activations near 1."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            # Most norms of Muse Glimmer are stored as the difference from 1.
            centred = "layers" in name and "layernorm" in name and "muse" in model.config.model_type
            one = name.endswith(("norm.weight", "norm1.weight", "norm2.weight")) or "ln_" in name
            centre = 1.0 if one and not centred and name.endswith("weight") else 0.0
            torch.nn.init.normal_(parameter, centre, 0.2)
        else:
            torch.nn.init.normal_(parameter, 0.0, 1.5 / parameter.shape[1] ** 0.5)
    return model.requires_grad_(False).eval()


def muse_glimmer(
    folder: Path, *, text: dict[str, Any], vision: dict[str, Any] | None = None, seed: int = 0
) -> MuseGlimmerForConditionalGeneration:
    """A random Muse Glimmer with `text` and `vision` over tiny shapes, saved in `folder`."""
    text_config: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 5,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "output_multiplier": 0.6,
    } | text
    vision_config: dict[str, Any] = {
        "patch_size": 4,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
    } | (vision or {})
    config = MuseGlimmerConfig(
        text_config=text_config,
        vision_config=vision_config,
        out_hidden_size=4 * vision_config["hidden_size"],
        projector_hidden_size=20,
        image_token_id=PATCH_TOKEN,
        video_token_id=PATCH_TOKEN + 1,
        attn_implementation="eager",
    )
    model = randomise(MuseGlimmerForConditionalGeneration(config), seed)
    model.save_pretrained(folder)
    return model
