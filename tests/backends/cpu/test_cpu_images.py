"""Images on the cpu backend: towers from GGUF files and folders, exported and run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from hf_models import muse_glimmer
from image_conformance import (
    CELLS,
    PAGE_SIZE,
    ImageConformance,
    Rows,
    eager,
    encode,
    greedy,
    part,
    random_image,
    run,
)
from muse_fixtures import IMAGE, MMPROJ, Q4_K_M, distance, optional_model, reference
from numpy.typing import NDArray
from tiny_models import tiny_gguf
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, ExecutionError, InvalidInputError, ModelFileError
from astrai_cli.models.vision_spec import VisionFile
from backends.base import EmbeddingSpan, Executor, SequenceStep, Step
from backends.cpu.executor import CpuExecutor
from backends.registry import get_backend

__all__ = ["eager"]

Export = Callable[..., Path]
Tokens = NDArray[np.int32]


@pytest.fixture(scope="module")
def muse(export: Export) -> Path:
    return export(Q4_K_M, MMPROJ)


@pytest.fixture
def opened(muse: Path) -> Iterator[Executor]:
    with closing(open_cpu(muse)) as executor:
        yield executor


def open_cpu(artifact: Path, **limits: object) -> Executor:
    executor = get_backend("cpu").open(artifact, LimitsConfig.model_validate(limits))
    executor.allocate(CELLS)
    return executor


class TestCpuImages(ImageConformance):
    tower = 0.012
    through_text = 0.13
    # To the last bit.
    consistency = 0.0

    @pytest.fixture
    def executor(self, opened: Executor) -> Executor:
        return opened

    def test_threads_change_nothing(self, muse: Path) -> None:
        """Many tiles of attention, and few, which threads share in another way."""
        shapes = [(1, 2), (9, 8)]
        encoded = []
        for threads in (1, 2):
            with closing(open_cpu(muse, threads=threads)) as executor:
                assert executor.info.details["threads"] == threads
                encoded.append([executor.encode_image(random_image(*shape)) for shape in shapes])
        for one, two in zip(*encoded, strict=True):
            np.testing.assert_array_equal(one, two)


def behind_an_image(executor: Executor, tokens: Tokens) -> Rows:
    """Logits of all rows of a text whose tokens 3 to 17 are an image."""
    spans = (EmbeddingSpan(3, encode(executor, IMAGE.read_bytes())),)
    step = SequenceStep(tokens, 0, np.arange(1, dtype=np.int32), len(tokens), spans)
    return executor.step(Step([step], PAGE_SIZE)).logits.copy()


def test_a_rotated_stream_takes_rotated_rows(tmp_path: Path, export: Export) -> None:
    """Without norms behind its sub-layers a text model's residual stream has another basis."""
    text = tiny_gguf(tmp_path, name="rotated", n_layers=1, width=256)
    tokens = np.arange(40, dtype=np.int32)
    with closing(get_backend("eager").open(text, LimitsConfig(mmproj=MMPROJ))) as reference_model:
        reference_model.allocate(CELLS)
        expected = behind_an_image(reference_model, tokens)
    with closing(open_cpu(export(text, MMPROJ))) as executor:
        assert distance(behind_an_image(executor, tokens), expected) < 0.05


def test_a_folders_own_tower(tmp_path: Path, export: Export) -> None:
    vision = {"num_hidden_layers": 1, "rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}
    muse_glimmer(tmp_path, text={"num_hidden_layers": 1}, vision=vision)
    words = {f"t{index}": index for index in range(96)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    artifact = export(tmp_path)
    told = Artifact.open(artifact).manifest.vision
    assert told is not None
    assert (told.mmproj, told.max_patches) == (None, 16384)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    with closing(get_backend("eager").open(tmp_path, LimitsConfig())) as reference_model:
        expected = reference_model.encode_image(pixels)
    with closing(open_cpu(artifact)) as executor:
        assert executor.info.vision == told.spec
        assert distance(executor.encode_image(pixels), expected) < 0.05
    with closing(open_cpu(export(tmp_path, activation_dtype="float32"))) as executor:
        assert distance(executor.encode_image(pixels), expected) < 1e-4


def test_what_the_manifest_says(muse: Path, opened: Executor) -> None:
    manifest = Artifact.open(muse, verify=True).manifest
    assert manifest.details["methods"] == ["forward", "vision_encoder", "vision_projector"]
    assert {"model.pte", "vision.pte", "pos_embed.bin"} < {*manifest.files}
    assert manifest.vision is not None
    assert manifest.vision.mmproj is not None
    assert manifest.vision.mmproj.name == MMPROJ.name
    assert manifest.vision.spec == opened.info.vision
    with VisionFile.open(MMPROJ) as tower:
        table = tower.get("v.position_embd.weight")
    assert (muse / "pos_embed.bin").read_bytes() == table.astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("asked", "most"), [(None, 4096), (4, 4), (4097, 4096), (2**31 - 1, 16384)]
)
def test_the_bound_on_patches(muse: Path, asked: int | None, most: int) -> None:
    with closing(open_cpu(muse, max_vision_patches=asked)) as executor:
        assert executor.info.max_vision_patches == most


def test_the_artifacts_own_tower_file_may_be_named(
    muse: Path, tmp_path: Path, native_library: Path
) -> None:
    open_cpu(muse, mmproj=MMPROJ).close()
    other = tmp_path / "other.gguf"
    other.write_bytes(MMPROJ.read_bytes() + b"!")
    with pytest.raises(InvalidInputError, match=r"that is not other\.gguf: export .* --mmproj"):
        open_cpu(muse, mmproj=other)
    with pytest.raises(ModelFileError, match=r"absent\.gguf: No such file"):
        open_cpu(muse, mmproj=tmp_path / "absent.gguf")
    artifact = Artifact.open(muse)
    blind = replace(artifact, manifest=artifact.manifest.model_copy(update={"vision": None}))
    with pytest.raises(InvalidInputError, match=r"has no vision tower: export .* --mmproj"):
        CpuExecutor(native_library, blind, LimitsConfig(mmproj=MMPROJ))


def test_a_closed_executor_encodes_nothing(muse: Path) -> None:
    executor = open_cpu(muse)
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        executor.encode_image(random_image(1, 1))


@pytest.mark.parametrize("name", ["vision.pte", "pos_embed.bin"])
def test_altered_files_are_refused(muse: Path, tmp_path: Path, name: str) -> None:
    damaged = Path(copytree(muse, tmp_path / "artifact"))
    data = bytearray((damaged / name).read_bytes())
    data[len(data) // 2] ^= 1
    (damaged / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{name} was altered"):
        open_cpu(damaged)


@pytest.mark.parametrize(
    ("name", "message"),
    [("vision.pte", "cannot load"), ("pos_embed.bin", "holds 250 numbers, must hold 2048")],
)
def test_files_that_shrink_after_they_were_checked(
    muse: Path, tmp_path: Path, native_library: Path, name: str, message: str
) -> None:
    artifact = replace(Artifact.open(muse), path=Path(copytree(muse, tmp_path / "artifact")))
    os.truncate(artifact.path / name, 1000)
    with pytest.raises(ArtifactError, match=message):
        CpuExecutor(native_library, artifact, LimitsConfig())


def with_spec(muse: Path, **changes: int) -> Artifact:
    """The artifact with a manifest that says something else of the tower."""
    artifact = Artifact.open(muse)
    vision = artifact.manifest.vision
    assert vision is not None
    wrong = vision.model_copy(update={"spec": replace(vision.spec, **changes)})
    return replace(artifact, manifest=artifact.manifest.model_copy(update={"vision": wrong}))


def test_heads_that_are_too_wide(muse: Path, native_library: Path) -> None:
    wide = with_spec(muse, width=512, n_heads=1)
    with pytest.raises(ArtifactError, match=r"tower's heads are 512 wide; .* up to 256"):
        CpuExecutor(native_library, wide, LimitsConfig())


@pytest.mark.parametrize("changes", [{"n_layers": 9}, {"n_heads": 3}, {"text_width": 64}])
def test_a_failure_changes_nothing(
    muse: Path, native_library: Path, changes: dict[str, int]
) -> None:
    """A tower that is not the manifest's fails to encode, and texts go on."""
    tokens = reference("input_ids").astype(np.int32)
    changed = with_spec(muse, **changes)
    with closing(CpuExecutor(native_library, changed, LimitsConfig())) as executor:
        executor.allocate(CELLS)
        whole = run(executor, tokens, len(tokens))
        executor.step(Step([part(tokens, 0, 20, 0)], PAGE_SIZE))
        with pytest.raises(ExecutionError, match="the cpu executor failed: "):
            executor.encode_image(random_image(2, 2))
        rest = executor.step(Step([part(tokens, 20, len(tokens), 0)], PAGE_SIZE)).logits
        np.testing.assert_array_equal(rest, whole[20:])


def test_a_trained_model_sees_what_it_saw_elsewhere(export: Export) -> None:
    folder = optional_model("tiny-muse-chat")
    mmproj = folder / "mmproj-tiny-muse-chat-bf16.gguf"
    stops = json.loads((folder / "chat.json").read_text())["stop_ids"]
    with closing(open_cpu(export(folder / "tiny-muse-chat-bf16.gguf", mmproj))) as executor:
        for case in json.loads((folder / "images.json").read_text()):
            image = encode(executor, (folder / case["image"]).read_bytes())
            assert greedy(executor, case["prompt_ids"], stops, image) == case["greedy_ids"]
