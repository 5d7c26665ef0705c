"""The dry run of the check of GPUs: every part runs on the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_every_part_runs_on_the_processor(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu"]
    environment = {**os.environ, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert results["facts"]["device"] == "cpu"
    assert results["conformance"]["clear_choices_that_differ"] == 0
    assert results["conformance"]["error_against_float32"] < 1e-5
    assert results["decode"]["8"]["tokens_per_second"] > 0
    assert results["prefill"]["128 tokens in 8"]["share_of_matrix_rate"] > 0
    for part in results:
        assert f"| {part} |" in done.stdout
