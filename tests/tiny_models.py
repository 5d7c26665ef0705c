"""Tiny random GGUF files of every supported architecture, with a real byte-level BPE tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quantize
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<tool_call>",)
VOCABULARY = 384

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = """The quick brown fox jumps over the lazy dog, and then the other one does the same.
In the beginning there was a small model that answered every question it was asked, one after
another, until nobody had a question left. Tokens are the letters of models: they are counted,
cached, sampled and streamed. What is the capital of France? The capital of France is Paris.
Der Hund läuft über die Straße. 東京は日本の首都です。 Привет, как дела? مرحبا بالعالم 👋🌍
def add(first, second):\n    return first + second\n\n1 2 3 10 100 1000 2024 3.14159
"""


@dataclass(frozen=True)
class TinyModel:
    """What to write. `type`: the ggml type of matrices; vectors are always float32.

    The defaults give 4 query and 2 key-value heads of 16 in 2 layers.
    """

    architecture: str = "llama"
    name: str = "tiny"
    n_layers: int = 2
    width: int = 64
    ffn_width: int = 128
    n_heads: int = 4
    n_kv_heads: int = 2
    head_width: int = 16
    context_length: int = 512
    tied: bool = True
    qkv_bias: bool | None = None
    type: str = "F32"
    rope_base: float = 10000.0
    rope_dimension: int | None = None
    rope_scale: float | None = None
    llama3_rope: bool = False
    sliding_window: int | None = None
    sliding_window_pattern: tuple[bool, ...] | None = None
    logit_scale: float | None = None
    logit_cap: float | None = None
    gate: str = "attn_gate"
    pre: str = "smollm"
    add_bos: bool = False
    chat_template: str | None = CHAT_TEMPLATE
    seed: int = 0

    @property
    def has_bias(self) -> bool:
        return self.architecture == "qwen2" if self.qkv_bias is None else self.qkv_bias

    @property
    def is_muse(self) -> bool:
        return self.architecture == "muse-glimmer"

    def vectors(self) -> dict[str, int]:
        """Names and lengths of one layer's norms and biases."""
        named = {"attn_norm.weight": self.width, "ffn_norm.weight": self.width}
        if self.is_muse:
            named |= {"post_attention_norm.weight": self.width, "post_ffw_norm.weight": self.width}
        if self.architecture == "qwen3" or self.is_muse:
            named |= {"attn_q_norm.weight": self.head_width, "attn_k_norm.weight": self.head_width}
        if self.has_bias:
            kv = self.n_kv_heads * self.head_width
            named |= {"attn_q.bias": self.n_heads * self.head_width}
            named |= {"attn_k.bias": kv, "attn_v.bias": kv}
        return named

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Names and shapes [out, in] of one layer's matrices."""
        q, kv = self.n_heads * self.head_width, self.n_kv_heads * self.head_width
        gate = {f"{self.gate}.weight": (q, self.width)} if self.is_muse else {}
        return gate | {
            "attn_q.weight": (q, self.width),
            "attn_k.weight": (kv, self.width),
            "attn_v.weight": (kv, self.width),
            "attn_output.weight": (self.width, q),
            "ffn_gate.weight": (self.ffn_width, self.width),
            "ffn_up.weight": (self.ffn_width, self.width),
            "ffn_down.weight": (self.width, self.ffn_width),
        }


def tiny_gguf(
    folder: Path,
    architecture: str = "llama",
    weights: Mapping[str, NDArray[np.float32]] | None = None,
    **overrides: Any,
) -> Path:
    """Write a tiny random model into `folder`; `overrides` are TinyModel's fields.

    `weights`, by tensor name and in the file's own row order, take the place of random ones.
    """
    model = TinyModel(architecture=architecture, **overrides)
    path = folder / f"{model.name}-{architecture}-{model.seed}.gguf"
    writer = GGUFWriter(path, architecture)
    _write_metadata(writer, model)
    _write_tokenizer(writer, model)
    kind = GGMLQuantizationType[model.type]
    for name, values in (_random_weights(model) | dict(weights or {})).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_name(model.name)
    writer.add_block_count(model.n_layers)
    writer.add_context_length(model.context_length)
    writer.add_embedding_length(model.width)
    writer.add_feed_forward_length(model.ffn_width)
    writer.add_head_count(model.n_heads)
    writer.add_head_count_kv(model.n_kv_heads)
    writer.add_key_length(model.head_width)
    writer.add_value_length(model.head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(model.rope_base)
    if model.rope_dimension is not None:
        writer.add_rope_dimension_count(model.rope_dimension)
    if model.logit_scale is not None:
        writer.add_logit_scale(model.logit_scale)
    if model.logit_cap is not None:
        writer.add_final_logit_softcapping(model.logit_cap)
    if model.rope_scale is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.rope_scale)
    if model.sliding_window is not None:
        writer.add_sliding_window(model.sliding_window)
    if model.sliding_window_pattern is not None:
        writer.add_sliding_window_pattern(list(model.sliding_window_pattern))


def _write_tokenizer(writer: GGUFWriter, model: TinyModel) -> None:
    tokens, merges = _byte_level_bpe()
    kinds = [TokenType.NORMAL] * len(tokens)
    kinds[: len(SPECIALS)] = [TokenType.CONTROL] * len(SPECIALS)
    kinds[-len(USER_DEFINED) :] = [TokenType.USER_DEFINED] * len(USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(model.add_bos)
    if model.chat_template is not None:
        writer.add_chat_template(model.chat_template)


@cache
def _byte_level_bpe() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """VOCABULARY tokens, special ones first and user-defined ones last, and their merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(USER_DEFINED),
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    assert len(tokens) + len(USER_DEFINED) == VOCABULARY
    return (*tokens, *USER_DEFINED), tuple(" ".join(pair) for pair in bpe["merges"])


def _random_weights(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(model.seed)

    def matrix(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale)

    def vector(name: str, length: int) -> NDArray[np.float32]:
        centre = 0.0 if name.endswith("bias") else 1.0
        return (centre + 0.1 * random.standard_normal(length)).astype(np.float32)

    # Small embeddings, so that a tied head does not just repeat its input.
    weights = {"token_embd.weight": matrix(VOCABULARY, model.width, 0.3)}
    for layer in range(model.n_layers):
        for name, length in model.vectors().items():
            weights[f"blk.{layer}.{name}"] = vector(name, length)
        for name, (rows, columns) in model.matrices().items():
            weights[f"blk.{layer}.{name}"] = matrix(rows, columns, 1.5 / columns**0.5)
    weights["output_norm.weight"] = vector("output_norm.weight", model.width)
    if not model.tied:
        weights["output.weight"] = matrix(VOCABULARY, model.width, 2.0 / model.width**0.5)
    if model.llama3_rope:
        half = (model.rope_dimension or model.head_width) // 2
        weights["rope_freqs.weight"] = np.linspace(1, 8, half, dtype=np.float32)
    return weights
