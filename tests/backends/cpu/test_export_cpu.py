"""`astrai export` for the cpu backend, as users run it: a process that may be stopped."""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from cli_process import ASTRAI, environment
from muse_fixtures import MMPROJ
from reference_decoder import ReferenceDecoder, relative_error
from step_texts import random_tokens
from tiny_models import tiny_gguf

from astrai_cli.artifact import MANIFEST_NAME, Artifact, export_model
from astrai_cli.config import ExportConfig, LimitsConfig
from astrai_cli.errors import InvalidInputError
from backends.base import SequenceStep, Step
from backends.registry import get_backend

Process = subprocess.Popen[str]
Ended = subprocess.CompletedProcess[str]

CHUNK = 3
STAGES = [
    "reading the model file",
    "converting layer 1 of 1",
    "converting the head",
    "writing the program",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, and a program of about a megabyte."""
    folder = tmp_path_factory.mktemp("model")
    return tiny_gguf(folder, n_layers=1, width=256, ffn_width=1024, head_width=64)


def start(*arguments: str | Path, cwd: Path, wrapper: tuple[str, ...] = ()) -> Process:
    # One thread, and freed memory goes back to the system.
    variables = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    return subprocess.Popen(
        [*wrapper, ASTRAI, "export", *map(str, arguments)],
        cwd=cwd,
        env=environment({"ASTRAI_BACKEND": "cpu", **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def export(*arguments: str | Path, cwd: Path, wrapper: tuple[str, ...] = ()) -> Ended:
    process = start(*arguments, cwd=cwd, wrapper=wrapper)
    stdout, stderr = process.communicate()
    return Ended(process.args, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """An artifact exported beside what a killed export of the same had left, and that run."""
    folder = tmp_path_factory.mktemp("exported")
    killed = start(model, "-o", "artifact", cwd=folder)
    wait_for(killed, STAGES[0])
    killed.kill()
    killed.communicate()
    assert [path.name.startswith(".partial-") for path in folder.iterdir()] == [True]
    ended = export(model, "-o", "artifact", "--max-prefill-chunk", str(CHUNK), cwd=folder)
    return folder / "artifact", ended


def wait_for(process: Process, stage: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if stage in line:
            return
    pytest.fail(f"the export ended before {stage!r}")


def test_it_tells_its_stages_and_its_path(exported: tuple[Path, Ended]) -> None:
    _, ended = exported
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "artifact\n"
    assert ended.stderr.splitlines() == [f"astrai: {stage}" for stage in STAGES]


def test_the_artifact_is_whole_and_alone(exported: tuple[Path, Ended]) -> None:
    path, _ = exported
    artifact = Artifact.open(path, verify=True)
    assert artifact.manifest.backend == "cpu"
    assert artifact.manifest.details["methods"] == ["forward"]
    assert [entry.name for entry in path.parent.iterdir()] == ["artifact"]


def test_another_process_writes_the_same_bytes(
    exported: tuple[Path, Ended], model: Path, tmp_path: Path
) -> None:
    options = ExportConfig(max_prefill_chunk=CHUNK)
    export_model(model, tmp_path / "artifact", "cpu", options, lambda what, fraction: None)
    for file in exported[0].iterdir():
        assert (tmp_path / "artifact" / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_chunk_is_what_was_asked_for(exported: tuple[Path, Ended], model: Path) -> None:
    tokens = random_tokens(CHUNK + 1)
    pages = np.zeros(1, dtype=np.int32)
    with closing(get_backend("cpu").open(exported[0], LimitsConfig())) as executor:
        executor.allocate(16)
        assert executor.info.max_step_tokens == CHUNK
        with pytest.raises(InvalidInputError, match=f"{CHUNK + 1} tokens"):
            executor.step(Step([SequenceStep(tokens, 0, pages, 0)], 16))
        step = SequenceStep(tokens[:CHUNK], 0, pages, CHUNK)
        logits = executor.step(Step([step], 16)).logits.copy()
    expected = ReferenceDecoder(model).logits(tokens[:CHUNK].tolist())
    assert relative_error(logits, expected) < 0.3


@pytest.mark.parametrize(
    ("number", "stage", "code"),
    [
        (signal.SIGINT, STAGES[1], 130),
        (signal.SIGTERM, STAGES[2], 143),
        (signal.SIGKILL, STAGES[3], -signal.SIGKILL),
    ],
)
def test_an_interrupted_export_leaves_no_artifact(
    model: Path, tmp_path: Path, number: signal.Signals, stage: str, code: int
) -> None:
    process = start(model, "-o", "artifact", cwd=tmp_path)
    wait_for(process, stage)
    process.send_signal(number)
    stderr = process.communicate()[1]
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    left = [path.name for path in tmp_path.iterdir()]
    if number == signal.SIGKILL:
        assert [name.startswith(".partial-artifact-") for name in left] == [True]
    else:
        assert left == []


def test_an_export_interrupted_in_the_vision_tower(model: Path, tmp_path: Path) -> None:
    process = start(model, "--mmproj", MMPROJ, "-o", "artifact", cwd=tmp_path)
    wait_for(process, "converting layer 2 of 5 of the vision tower")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(model: Path, tmp_path: Path) -> None:
    """As far as a process can have one of its own: no file may be over half a megabyte."""
    limited = ("sh", "-c", 'ulimit -f 512; exec "$@"', "sh")
    ended = export(model, "-o", "artifact", cwd=tmp_path, wrapper=limited)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1] == "astrai: model.pte cannot be written: File too large"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("file/artifact", "file/artifact cannot be written: File exists"),
        ("file", "file exists and is not an artifact"),
        ("folder", "folder exists and is not an artifact"),
        ("artifact", "artifact exists already; --force replaces it"),
    ],
)
def test_a_target_that_cannot_be_written(
    model: Path, tmp_path: Path, target: str, message: str
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, name in (("folder", "mine"), ("artifact", MANIFEST_NAME)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    ended = export(model, "-o", target, cwd=tmp_path)
    assert ended.returncode == 3
    assert ended.stderr == f"astrai: {message}\n"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_float32_weights(tmp_path: Path) -> None:
    """Each layer adds its int8 weights and its part of the model file, a third of its float32."""
    width, first, last = 1024, 3, 6
    model = tiny_gguf(
        tmp_path, type="Q8_0", n_layers=last, width=width, ffn_width=width, head_width=256
    )
    process = start(model, "-o", "artifact", cwd=tmp_path)
    wait_for(process, f"converting layer {first} of {last}")
    before = resident_bytes(process)
    wait_for(process, f"converting layer {last} of {last}")
    grown = (resident_bytes(process) - before) / (last - first)
    process.kill()
    process.communicate()
    assert grown < 1.2 * 6 * width**2 * 4


def resident_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
