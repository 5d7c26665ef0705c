"""What is the cpu executor's own, beside the conformance suite."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from conformance import MODELS, Model
from reference_decoder import relative_error
from step_texts import (
    CELLS,
    Logits,
    Text,
    random_tokens,
    run,
    run_in_chunks,
    run_together,
    texts,
)
from table_attention import Heads, table_artifact

from astrai_cli.artifact import MANIFEST_NAME, Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError
from backends.base import Executor, SequenceStep, Step
from backends.cpu.executor import CpuExecutor
from backends.registry import get_backend

Open = Callable[..., Executor]
"""open(name, **limits) -> an executor of one of MODELS with CELLS cells."""


@pytest.fixture
def opened(models: dict[str, Model], export: Callable[[Path], Path]) -> Iterator[Open]:
    executors = []

    def open_executor(name: str, **limits: object) -> Executor:
        artifact = export(models[name].path)
        executor = get_backend("cpu").open(artifact, LimitsConfig.model_validate(limits))
        executors.append(executor)
        executor.allocate(CELLS)
        return executor

    yield open_executor
    for executor in executors:
        executor.close()


@pytest.fixture
def artifact(tmp_path: Path, models: dict[str, Model], export: Callable[[Path], Path]) -> Path:
    """A copy of an artifact, to be damaged."""
    return Path(copytree(export(models["llama"].path), tmp_path / "artifact"))


def alone(executor: Executor, text: Text, chunks: list[int]) -> Logits:
    return run_in_chunks(executor, 16, replace(text, done=0), chunks)


class TestPackedStepsAreRunningAlone:
    """Bit for bit, through XNNPACK and all."""

    STEPS = ([40, 32, 0, 17, 0], [1, 1, 30, 33, 1], [0, 1, 60, 0, 1])

    @pytest.mark.parametrize("name", MODELS)
    def test_tiny_models(self, opened: Open, name: str) -> None:
        lengths = [sum(counts) for counts in zip(*self.STEPS, strict=True)]
        some = texts(lengths, 16, shuffled=True)
        executor = opened(name, threads=1)
        expected = [alone(executor, text, [1] * len(text.tokens)) for text in some]
        executor.close()
        for threads in (1, 2):
            executor = opened(name, threads=threads)
            assert executor.info.details["threads"] == threads
            for text, single, together in zip(
                some, expected, run_together(executor, 16, some, self.STEPS), strict=True
            ):
                np.testing.assert_array_equal(together, single)
                np.testing.assert_array_equal(alone(executor, text, [len(text.tokens)]), single)
                text.done = 0
            executor.close()

    def test_smollm2(self, smollm2_artifact: Path) -> None:
        tokenizer = Artifact.open(smollm2_artifact).tokenizer()
        prompts = [np.array(tokenizer.encode(text).ids, dtype=np.int32) for text in PROMPTS]
        steps = [
            SequenceStep(prompt, 0, np.array([page], dtype=np.int32))
            for page, prompt in enumerate(prompts)
        ]
        with closing(get_backend("cpu").open(smollm2_artifact, LimitsConfig())) as executor:
            executor.allocate(CELLS)
            together = executor.step(Step(steps, 64)).logits.copy()
            for step, row in zip(steps, together, strict=True):
                np.testing.assert_array_equal(executor.step(Step([step], 64)).logits[0], row)
        assert tokenizer.decode([together[0].argmax()]) == " Paris"


PROMPTS = [
    "The capital of France is",
    "One",
    "Once upon a time there was a small model that answered every question it was asked",
]


def test_half_floats_cost_little(opened: Open) -> None:
    [text] = texts([100], 16, shuffled=True)
    half = alone(opened("llama", kv_dtype="float16"), text, [100])
    whole = alone(opened("llama", kv_dtype="float32"), text, [100])
    assert not np.array_equal(half, whole)
    assert relative_error(half, whole) < 0.1


def test_cells_are_counted(opened: Open) -> None:
    info = opened("qwen3").info
    assert info.bytes_per_cell == 2 * info.spec.kv_values_per_token
    assert opened("qwen3", kv_dtype="float32").info.bytes_per_cell == 2 * info.bytes_per_cell


@pytest.mark.parametrize("cells", [2**40, 2**60 + 1, 2**62 + 3, 2**64 + 1])
def test_more_cells_than_memory(opened: Open, cells: int) -> None:
    executor = opened("llama")
    with pytest.raises(InvalidInputError, match=f"no memory for {cells} cells"):
        executor.allocate(cells)
    [text] = texts([3], 16, shuffled=False)
    with pytest.raises(InvalidInputError, match="0 cells"):
        run(executor, 16, text.take(3))
    executor.allocate(CELLS)
    text.done = 0
    run(executor, 16, text.take(3))


def test_a_closed_executor_runs_nothing(opened: Open) -> None:
    executor = opened("llama")
    executor.close()
    [text] = texts([3], 16, shuffled=False)
    with pytest.raises(ExecutionError, match="closed"):
        run(executor, 16, text.take(3))
    with pytest.raises(ExecutionError, match="closed"):
        executor.allocate(CELLS)
    executor.close()


def test_executors_in_two_threads(opened: Open) -> None:
    """They open, run and close beside each other."""
    some = texts([70, 41], 16, shuffled=True)
    expected = {name: run_all(opened(name), some) for name in ("llama", "qwen3")}

    def use(name: str) -> None:
        for _ in range(5):
            executor = opened(name)
            for _ in range(5):
                for found, known in zip(run_all(executor, some), expected[name], strict=True):
                    np.testing.assert_array_equal(found, known)
            executor.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, expected))


def run_all(executor: Executor, some: list[Text]) -> list[Logits]:
    fresh = [replace(text, done=0) for text in some]
    return run_together(executor, 16, fresh, [[40, 40], [1, 1], [29, 0]])


def test_the_first_open_executor_decides_on_threads(opened: Open) -> None:
    """A pool is not taken from under programs that run on it."""
    some = texts([70, 41], 16, shuffled=True)
    first = opened("llama", threads=2)
    before = run_all(first, some)
    second = opened("llama", threads=1)
    assert second.info.details["threads"] == 2
    for executor in (first, second):
        for found, known in zip(run_all(executor, some), before, strict=True):
            np.testing.assert_array_equal(found, known)
    first.close()
    second.close()
    assert opened("llama", threads=1).info.details["threads"] == 1


@pytest.mark.parametrize("place", [0, 8, 0x30, 0.02, 0.06, 0.5, 0.999])
def test_altered_programs_are_refused(artifact: Path, place: float) -> None:
    program = artifact / "model.pte"
    data = bytearray(program.read_bytes())
    data[int(place) if place >= 1 else int(place * len(data))] ^= 0x10
    program.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"model\.pte was altered") as caught:
        get_backend("cpu").open(artifact, LimitsConfig())
    assert "\n" not in str(caught.value)


def test_truncated_programs_are_refused(artifact: Path) -> None:
    program = artifact / "model.pte"
    size = program.stat().st_size
    program.write_bytes(program.read_bytes()[: size // 2])
    with pytest.raises(ArtifactError, match=f"{size // 2} bytes, must have {size}"):
        get_backend("cpu").open(artifact, LimitsConfig())


TRUNCATE = """
import sys
from pathlib import Path
from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError
from backends.cpu.executor import CpuExecutor
library, folder = map(Path, sys.argv[1:])
artifact = Artifact.open(folder)
program = folder / "model.pte"
data = program.read_bytes()
for length in [*range(0, 200, 9), *range(200, len(data), len(data) // 40)]:
    program.write_bytes(data[:length])
    try:
        CpuExecutor(library, artifact, LimitsConfig())
        print(f"{length} bytes were opened")
    except ArtifactError as error:
        assert "\\n" not in str(error) and "model.pte" in str(error)
print("end")
"""


def test_executorch_survives_truncation(artifact: Path, native_library: Path) -> None:
    """As where a file shrinks after it was checked."""
    command = [sys.executable, "-c", TRUNCATE, str(native_library), str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_an_artifact_without_its_program(artifact: Path) -> None:
    (artifact / "model.pte").unlink()
    with pytest.raises(ArtifactError, match=r"'model\.pte' is missing"):
        get_backend("cpu").open(artifact, LimitsConfig())


def test_a_manifest_that_names_no_program(artifact: Path) -> None:
    manifest = artifact / MANIFEST_NAME
    fields = json.loads(manifest.read_text())
    fields["details"] = {}
    manifest.write_text(json.dumps(fields))
    with pytest.raises(ArtifactError, match="cannot load"):
        get_backend("cpu").open(artifact, LimitsConfig())


def test_heads_that_are_too_wide(tmp_path: Path, native_library: Path) -> None:
    artifact = table_artifact(tmp_path / "model.pte", Heads(257, 1), None)
    with pytest.raises(ArtifactError, match="257 wide; the cpu backend runs up to 256"):
        CpuExecutor(native_library, artifact, LimitsConfig())


def test_a_program_that_is_not_the_manifests(artifact: Path, native_library: Path) -> None:
    """Its steps fail, and the process lives."""
    opened = Artifact.open(artifact)
    spec = replace(opened.spec, n_layers=1, windows=(None,))
    manifest = opened.manifest.model_copy(update={"spec": spec})
    with closing(
        CpuExecutor(native_library, replace(opened, manifest=manifest), LimitsConfig())
    ) as executor:
        executor.allocate(CELLS)
        step = SequenceStep(random_tokens(3), 0, np.arange(3, dtype=np.int32))
        with pytest.raises(ExecutionError, match="ExecuTorch failed"):
            executor.step(Step([step], 1))
