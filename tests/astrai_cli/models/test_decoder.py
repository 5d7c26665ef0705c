"""The PyTorch decoder against Hugging Face's own models, built at random, and on a real file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import LINEAR_ROPE, LLAMA3_ROPE
from numpy.typing import NDArray
from reference_decoder import ReferenceDecoder, relative_error
from tiny_models import VOCABULARY, tiny_gguf
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from astrai_cli.models.decoder import Decoder
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.loader import load_decoder
from astrai_cli.models.rope import rope_frequencies
from astrai_cli.models.spec import ModelSpec, RopeSpec
from astrai_cli.models.weights import Weights

GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SHAPES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def attend_to_itself(spec: ModelSpec) -> Any:
    """The attention of one whole sequence, without a cache."""

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, layer: int
    ) -> torch.Tensor:
        distance = positions[:, None] - positions
        output = torch.nn.functional.scaled_dot_product_attention(
            *(x.permute(2, 1, 0, 3) for x in (q, k, v)),
            attn_mask=(distance >= 0) & (distance < (spec.windows[layer] or len(positions))),
            scale=spec.attention_scale,
            enable_gqa=True,
        )
        return output.permute(2, 1, 0, 3)

    return attend


def run(decoder: Decoder, tokens: list[int]) -> NDArray[np.float32]:
    every = torch.arange(len(tokens))
    h = decoder.embed(torch.tensor(tokens))
    logits = decoder(h, every, every, attend_to_itself(decoder.spec))
    return logits.numpy()


def load(path: Path) -> Decoder:
    with ModelFile.open(path) as model_file:
        return load_decoder(Weights(model_file))


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model whose norms and biases are random as well."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            torch.nn.init.normal_(parameter, centre, 0.2)
        else:
            torch.nn.init.normal_(parameter, 0.0, 1.5 / parameter.shape[1] ** 0.5)
    return model.requires_grad_(False).eval()


def gguf_weights(model: PreTrainedModel) -> dict[str, NDArray[np.float32]]:
    """The model's tensors, named and ordered as GGUF files have them."""
    config = model.config
    weights = {}
    for name, parameter in model.named_parameters():
        match = re.fullmatch(r"(?:model\.)?(?:layers\.(\d+)\.)?(.+)\.(weight|bias)", name)
        assert match is not None
        layer, module, kind = match.groups()
        prefix = "" if layer is None else f"blk.{layer}."
        values = parameter.numpy()
        if config.model_type == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
            values = neighbouring_pairs(values, config.head_dim)
        weights[f"{prefix}{GGUF_NAMES[module]}.{kind}"] = values
    if (config.rope_parameters or {}).get("rope_type") == "llama3":
        plain = RopeSpec(config.rope_parameters["rope_theta"], config.head_dim)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        weights["rope_freqs.weight"] = (rope_frequencies(plain) / scaled).astype(np.float32)
    return weights


def neighbouring_pairs(values: NDArray[np.float32], head_width: int) -> NDArray[np.float32]:
    """Rows i and i + head_width / 2 of each head side by side, as GGUF llama files have them."""
    halves = values.reshape(-1, 2, head_width // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


@pytest.mark.parametrize(
    ("architecture", "config", "metadata"),
    [
        pytest.param("llama", LlamaConfig(**SHAPES, tie_word_embeddings=True), {}, id="llama"),
        pytest.param("llama", LlamaConfig(**SHAPES), {"tied": False}, id="llama-untied"),
        pytest.param(
            "llama",
            LlamaConfig(**SHAPES, rope_parameters=LLAMA3_ROPE),
            {"tied": False, "llama3_rope": True},
            id="llama3-rope",
        ),
        pytest.param(
            "llama",
            LlamaConfig(**SHAPES, rope_parameters=LINEAR_ROPE),
            {"tied": False, "rope_scale": 2.5},
            id="linear-rope",
        ),
        pytest.param("qwen2", Qwen2Config(**SHAPES, tie_word_embeddings=True), {}, id="qwen2"),
        pytest.param(
            "qwen3",
            Qwen3Config(**SHAPES | {"head_dim": 32, "num_key_value_heads": 1}),
            {"tied": False, "head_width": 32, "n_kv_heads": 1},
            id="qwen3-untied",
        ),
        pytest.param(
            "qwen3",
            Qwen3Config(
                **SHAPES,
                tie_word_embeddings=True,
                use_sliding_window=True,
                sliding_window=16,
                layer_types=["sliding_attention", "full_attention"],
            ),
            {"sliding_window": 16, "sliding_window_pattern": (True, False)},
            id="qwen3-windows",
        ),
    ],
)
def test_same_logits_as_hugging_face(
    tmp_path: Path, architecture: str, config: PretrainedConfig, metadata: dict[str, Any]
) -> None:
    model = random_model(config)
    path = tiny_gguf(tmp_path, architecture, gguf_weights(model), **metadata)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 150).tolist()
    expected = model(torch.tensor([tokens])).logits[0].numpy()
    assert relative_error(run(load(path), tokens), expected) < 1e-4
    assert relative_error(ReferenceDecoder(path).logits(tokens), expected) < 1e-4


def test_rotates_only_the_first_components(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, rope_dimension=8)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()
    expected = ReferenceDecoder(path).logits(tokens)
    assert relative_error(run(load(path), tokens), expected) < 1e-4


def test_a_row_is_chosen_before_the_head(tmp_path: Path) -> None:
    decoder = load(tiny_gguf(tmp_path))
    h = decoder.embed(torch.arange(9, dtype=torch.int32))
    attend = attend_to_itself(decoder.spec)
    chosen = decoder(h, torch.arange(9), torch.tensor([8, 2]), attend)
    every = run(decoder, list(range(9)))
    np.testing.assert_allclose(chosen.numpy(), every[[8, 2]], rtol=1e-4, atol=1e-5)
    nothing = decoder(h, torch.arange(9), torch.tensor([], dtype=torch.int64), attend)
    assert nothing.shape == (0, VOCABULARY)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_held_once(tmp_path: Path, tied: bool) -> None:
    decoder = load(tiny_gguf(tmp_path, tied=tied))
    shared = decoder.output.weight.data_ptr() == decoder.token_embd.weight.data_ptr()
    assert shared is tied


def test_weights_outlive_the_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    decoder = load(path)
    before = run(decoder, [5, 6, 7])
    path.write_bytes(b"")
    np.testing.assert_array_equal(run(decoder, [5, 6, 7]), before)


def test_smollm2_knows_the_capital_of_france(smollm2_gguf: Path) -> None:
    decoder = load(smollm2_gguf)
    with ModelFile.open(smollm2_gguf) as model_file:
        vocabulary = model_file.metadata.texts("tokenizer.ggml.tokens")
    prompt = ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]
    tokens = [vocabulary.index(piece) for piece in prompt]
    choice = int(run(decoder, tokens)[-1].argmax())
    assert vocabulary[choice] == "ĠParis"
