"""How fast others answer with a model of the same shape, where they are installed."""

from __future__ import annotations

import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_subject import Subject

from astrai_cli.models.spec import ModelSpec

_PROMPT = 32


def peers(subject: Subject) -> dict[str, Any]:
    """Tokens a second of one answer by others, of the same shape in bfloat16."""
    spec, answer = subject.size.spec, subject.size.answer
    # Theirs may need the memory.
    del subject.decoder
    return {
        "transformers": time_transformers(spec, subject.device, subject.size.dtype, answer),
        "vllm": time_vllm(spec, answer) if subject.is_gpu else None,
    }


def time_transformers(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, n_tokens: int
) -> dict[str, Any] | None:
    """`generate` of transformers; None where it is not installed."""
    if find_spec("transformers") is None:
        return None
    import transformers

    config = transformers.LlamaConfig(**_llama(spec))
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = transformers.LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)
    prompt = torch.ones(1, _PROMPT, dtype=torch.int64, device=device)
    options = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens, "do_sample": False}
    with torch.inference_mode():
        seconds = min(_timed(lambda: model.generate(prompt, **options)) for _ in range(2))
    return {"version": transformers.__version__, "tokens_per_second": n_tokens / seconds}


def time_vllm(spec: ModelSpec, n_tokens: int) -> dict[str, Any] | None:
    """vLLM with weights of its own making; None where it is not installed."""
    if find_spec("vllm") is None:
        return None
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_llama(spec)}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        engine = vllm.LLM(folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048)
        options = vllm.SamplingParams(
            temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False
        )
        prompt = {"prompt_token_ids": [1] * _PROMPT}
        seconds = min(_timed(lambda: engine.generate([prompt], options)) for _ in range(2))
    return {"version": vllm.__version__, "tokens_per_second": n_tokens / seconds}


def _llama(spec: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_width,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_length,
        "tie_word_embeddings": False,
    }


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
