"""The real model, exported with its 4-bit blocks and served in float32 on the processor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from openai import OpenAI
from server_process import running_server

from astrai_cli import load
from astrai_cli.models.text import TextModel

PROMPTS = ("The capital of France is", "def add(a, b):\n")
N_TOKENS = 10
# Sums in another order move logits by less than this.
TOLERANCE = 1e-3


def test_tokens_are_the_reference_s_greedy_choices(export: Any, smollm2_gguf: Path) -> None:
    """Both prompts at once; every token is the reference's choice after those before it."""
    limits = {"device": "cpu", "max_context": 64, "max_decode_sequences": 4, "threads": 2}

    def complete(client: OpenAI, prompt: str) -> list[str]:
        answer = client.completions.create(
            model="astrai", prompt=prompt, max_tokens=N_TOKENS, temperature=0, logprobs=0
        )
        assert answer.choices[0].logprobs is not None
        return answer.choices[0].logprobs.tokens or []

    with running_server(export(smollm2_gguf), "cuda", limits=limits) as server:
        client = server.openai()
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda prompt: complete(client, prompt), PROMPTS))
    text = TextModel.read(smollm2_gguf)
    with load(smollm2_gguf, backend="eager", threads=2) as reference:
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            ids = text.encode_prompt(prompt)
            chosen = text.tokenizer.encode("".join(answer), add_special_tokens=False).ids
            assert len(answer) == N_TOKENS
            logits = reference.score([*ids, *chosen])[len(ids) - 1 : -1]
            best = np.sort(logits, axis=1)
            is_clear = best[:, -1] - best[:, -2] > TOLERANCE
            assert is_clear.sum() >= N_TOKENS - 1
            assert (logits.argmax(axis=1) == chosen)[is_clear].all()
