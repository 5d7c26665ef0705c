"""llama.cpp's side of a comparison, through the C interface that llama-cpp-python binds.

Runs under a Python that has llama-cpp-python and numpy. What is timed is `llama_decode`
until it is done, without drawing tokens from the logits; a batch holds one token of every
sequence, as in llama.cpp's own server.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np
from peer import Answer, Question, answer_questions

CHUNK = 512
LOG_LEVEL_ERROR = 4


@llama_cpp.llama_log_callback
def print_errors(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level == LOG_LEVEL_ERROR:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


class LlamaContext:
    """A context for up to n_sequences sequences of n_context tokens each."""

    def __init__(self, model: Any, n_sequences: int, n_context: int, n_threads: int) -> None:
        # Flash attention is left to llama.cpp to choose; keys and values are float16.
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_sequences * n_context
        params.n_seq_max = n_sequences
        params.n_batch = params.n_ubatch = CHUNK
        params.n_threads = params.n_threads_batch = n_threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context for {n_sequences} x {n_context} tokens")
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def decode(self, tokens: list[tuple[int, int, int]], n_logits: int) -> None:
        """Run (token, position, sequence) triples; the last n_logits of them give logits."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i >= len(tokens) - n_logits
        code = llama_cpp.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        llama_cpp.llama_synchronize(self._context)

    def logits(self, rows: int, vocabulary: int) -> np.ndarray:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (rows, vocabulary))


class LlamaBench:
    """Single timed runs, and scores, of one model file."""

    def __init__(self, file: str, n_context: int, decode_tokens: int, n_threads: int) -> None:
        llama_cpp.llama_log_set(print_errors, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            file.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {file}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._n_context = n_context
        self._decode_tokens = decode_tokens
        self._n_threads = n_threads
        self._random = np.random.default_rng(0)
        self._contexts: dict[int, LlamaContext] = {}

    def prefill(self, length: int) -> float:
        """Prompt tokens a second."""
        context = self._context(1)
        tokens = self._tokens(length)
        started = time.perf_counter()
        self._prefill(context, tokens, sequence=0)
        return length / (time.perf_counter() - started)

    def decode(self, n_sequences: int, prompt_length: int) -> float:
        """Tokens a second of sequences decoded together."""
        context = self._context(n_sequences)
        for sequence in range(n_sequences):
            self._prefill(context, self._tokens(prompt_length), sequence)
        steps = [
            [(token, prompt_length + step, sequence) for sequence, token in enumerate(tokens)]
            for step, tokens in enumerate(
                self._tokens(n_sequences) for _ in range(self._decode_tokens)
            )
        ]
        started = time.perf_counter()
        for step in steps:
            context.decode(step, n_logits=n_sequences)
        return n_sequences * len(steps) / (time.perf_counter() - started)

    def score(self, tokens: list[int], file: str) -> None:
        """Save the logits after each token, float32 [len(tokens), vocabulary]."""
        context = self._context(1)
        parts = []
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            triples = [(token, start + i, 0) for i, token in enumerate(part)]
            context.decode(triples, n_logits=len(part))
            parts.append(context.logits(len(part), self._vocabulary).copy())
        np.save(file, np.concatenate(parts))

    def _prefill(self, context: LlamaContext, tokens: list[int], sequence: int) -> None:
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            last = start + len(part) == len(tokens)
            context.decode(
                [(token, start + i, sequence) for i, token in enumerate(part)], n_logits=int(last)
            )

    def _context(self, n_sequences: int) -> LlamaContext:
        """An empty context; one is kept for each number of sequences."""
        if n_sequences not in self._contexts:
            self._contexts[n_sequences] = LlamaContext(
                self._model, n_sequences, self._n_context, self._n_threads
            )
        self._contexts[n_sequences].clear()
        return self._contexts[n_sequences]

    def _tokens(self, n: int) -> list[int]:
        tokens: list[int] = self._random.integers(0, self._vocabulary, n).tolist()
        return tokens


def main() -> None:
    settings = json.loads(sys.argv[1])
    bench = LlamaBench(
        settings["file"], settings["context"], settings["decode_tokens"], settings["threads"]
    )

    def work(question: Question) -> Answer:
        match question["kind"]:
            case "prefill":
                return {"tokens_per_second": bench.prefill(question["context"])}
            case "decode":
                speed = bench.decode(question["sequences"], question["context"])
                return {"tokens_per_second": speed}
            case "score":
                bench.score(question["tokens"], question["file"])
                return {}
            case _:
                features = llama_cpp.llama_print_system_info().decode()
                return {"version": llama_cpp.__version__, "features": features}

    answer_questions(work)


if __name__ == "__main__":
    main()
