"""The check of GPUs: every part of its dry run, on the processor; waits, by the profiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_waits
import pytest
import torch
from gpu_subject import Subject

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_every_part_runs_on_the_processor(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu"]
    environment = {**os.environ, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert results["facts"]["device"] == "cpu"
    assert "dry run" in done.stdout.splitlines()[2]
    assert results["conformance"]["clear_choices_that_differ"] == 0
    assert results["conformance"]["error_against_float32"] < 1e-5
    assert results["decode"]["8"]["tokens_per_second"] > 0
    assert results["prefill"]["128 tokens in 8"]["tokens_per_second"] > 0
    assert results["drafts"]["2 owners"]["equal_proposals"] == 1
    for shape in ("decode of 1", "decode of 8", "prefill of 128"):
        assert results["attention"][shape]["flex_attention"]["error"] < 1e-5
    for part in results:
        assert f"| {part} |" in done.stdout
    # Nothing is said of how near to its limits a processor comes.
    assert results["limits"]["bandwidth"] is None
    shares = [line for line in done.stdout.splitlines() if "share of" in line]
    assert shares
    assert all(line.endswith("| n/a |") for line in shares)


def test_what_waits_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of the processor, in the place of a driver's calls."""
    monkeypatch.setattr(gpu_waits, "WAITS", {"aten::sin", "aten::cos"})
    x = torch.ones(3)
    counted = gpu_waits.count_waits(lambda: (x.sin(), x.cos(), x.exp()), 2)
    assert counted == {"host_waits": 2, "copies_to_host": 0}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_host_waits_once_in_a_step_by_the_profiler() -> None:
    for kind, counted in gpu_waits.waits(Subject.on("cuda")).items():
        assert counted == {"host_waits": 1, "copies_to_host": 1}, kind
