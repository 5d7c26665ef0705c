"""A tiny model that says one given text, whatever it is asked, and ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import VOCABULARY, TinyModel, tiny_gguf

from astrai_cli.models.text import TextModel

# In bytes, and so in tokens, it never repeats itself, so that each token tells the next.
SAYING = "Aé東👋ж"


def parrot_gguf(folder: Path, saying: str = SAYING, **overrides: object) -> Path:
    """Write the model: attention and feed-forward add nothing, the head maps token to next."""
    shape = TinyModel(tied=False)
    plain = tiny_gguf(folder, name="plain", tied=False, **overrides)
    text = TextModel.read(plain)
    begin = text.encode_prompt("<|im_start|>assistant\n")[-1]
    said = text.tokenizer.encode(saying, add_special_tokens=False).ids
    chain = [begin, *said, text.special_tokens.eos[0]]
    assert len(set(chain)) == len(chain), "a token would have two successors"

    random = np.random.default_rng(0)
    embeddings = random.standard_normal((VOCABULARY, shape.width), dtype=np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    head = np.zeros_like(embeddings)
    head[chain[1:]] = 10 * embeddings[chain[:-1]]
    weights = {"token_embd.weight": embeddings, "output.weight": head}
    weights["output_norm.weight"] = np.ones(shape.width, np.float32)
    for layer in range(shape.n_layers):
        for name in ("attn_output.weight", "ffn_down.weight"):
            weights[f"blk.{layer}.{name}"] = np.zeros(shape.matrices()[name], np.float32)
    return tiny_gguf(folder, name="parrot", tied=False, weights=weights, **overrides)
