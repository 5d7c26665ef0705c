"""Peak memory of a server's worker process, after prompts of 512 tokens and decoding together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
from local_server import server

from astrai_cli.config import LimitsConfig
from astrai_cli.loading import RunnableModel, open_engine

PROMPT_WORDS = 480
ANSWER_TOKENS = 64


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Bytes. peak: the most that was resident at once; cells: the keys and values in it."""

    peak: int
    cells: int

    @property
    def without_cells(self) -> int:
        return self.peak - self.cells


def measure_worker_memory(
    model: RunnableModel, n_sequences: int, n_threads: int | None
) -> WorkerMemory | None:
    """Serve, answer n_sequences requests at once, read the peak; None where there is no /proc."""
    limits = LimitsConfig(max_decode_sequences=n_sequences, threads=n_threads)
    with open_engine(model, limits) as engine:
        bytes_per_cell = engine.info.bytes_per_cell
    with server(model, limits) as url, httpx.Client(base_url=url, timeout=300) as client:

        def tokens_of_one_answer(number: int) -> int:
            body = {
                "messages": [{"role": "user", "content": f"{number} " + "word " * PROMPT_WORDS}],
                "max_tokens": ANSWER_TOKENS,
                "ignore_eos": True,
            }
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            total: int = answer["usage"]["total_tokens"]
            return total

        with ThreadPoolExecutor(n_sequences) as pool:
            cells = sum(pool.map(tokens_of_one_answer, range(n_sequences)))
        pid = client.get("/stats").json()["worker"]["pid"]
        status = Path(f"/proc/{pid}/status")
        if not status.exists():
            return None
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return WorkerMemory(1024 * int(peak.split()[1]), cells * bytes_per_cell)
