"""Artifacts of the cuda backend, against their sources."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import muse_glimmer
from muse_fixtures import MMPROJ, Q4_K_M, distance
from numpy.typing import NDArray
from step_texts import random_tokens
from tiny_models import tiny_gguf
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, InvalidInputError
from astrai_cli.models.decoder import Decoder
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.weights import Weights
from backends import shards
from backends.base import Executor, SequenceStep, Step
from backends.cuda.export import SHARD_PATTERN
from backends.cuda.loading import StoredTensors, load_decoder
from backends.registry import get_backend

Export = Callable[..., Path]
OpenCuda = Callable[..., Executor]


def logits_of(executor: Executor, tokens: list[int]) -> NDArray[np.float32]:
    """Logits of all rows of a text."""
    with closing(executor):
        executor.allocate(256)
        ids, pages = np.array(tokens, dtype=np.int32), np.arange(1, dtype=np.int32)
        return executor.step(Step([SequenceStep(ids, 0, pages, len(ids))], 256)).logits.copy()


def reference_logits(source: Path, tokens: list[int]) -> NDArray[np.float32]:
    return logits_of(get_backend("eager").open(source, LimitsConfig(threads=1)), tokens)


def check_weights(source: Path, folder: Path) -> set[str]:
    """Every tensor is the source's to the last bit; the types that stay packed."""
    stored = StoredTensors(folder, SHARD_PATTERN, torch.device("cpu"))
    packed = set()
    with ModelFile.open(source) as model:
        weights = Weights(model)
        for name, shape in weights.shapes.items():
            matrix = stored.matrix(name, shape) if len(shape) == 2 else None
            if matrix is None:
                found = stored.get(name, shape)
            else:
                packed.add(weights.type_name(name))
                found = matrix.dequantized(torch.float32)
            np.testing.assert_array_equal(found.numpy(), weights.get(name))
    return packed


def test_weights_of_the_fixture_are_the_file_s(export: Export) -> None:
    folder = export(Q4_K_M, MMPROJ)
    assert check_weights(Q4_K_M, folder) == {"Q4_K", "Q6_K"}
    size = sum(file.stat().st_size for file in folder.glob(SHARD_PATTERN))
    assert size < 1.35 * Q4_K_M.stat().st_size
    assert (folder / "pos_embed.bin").exists()


def test_weights_of_the_real_model_are_the_file_s(export: Export, smollm2_gguf: Path) -> None:
    folder = export(smollm2_gguf)
    assert check_weights(smollm2_gguf, folder) == {"Q4_1", "Q8_0"}
    size = sum(file.stat().st_size for file in folder.glob(SHARD_PATTERN))
    assert size < 1.35 * smollm2_gguf.stat().st_size


def test_the_manifest_tells_what_the_executor_needs(export: Export) -> None:
    details = Artifact.open(export(Q4_K_M, MMPROJ)).manifest.details
    assert details["forward_sizes"] == [1, 2, 4, 8, 16, 32, 64]
    assert (details["max_step_tokens"], details["max_cells"]) == (4096, 65536)
    assert (details["activation_dtype"], details["logits"]) == ("float32", False)
    chosen = export(
        Q4_K_M,
        forward_sizes=(8, 3, 8),
        max_step_tokens=64,
        max_cells=1000,
        activation_dtype=None,
        logits=True,
    )
    details = Artifact.open(chosen).manifest.details
    assert details["forward_sizes"] == [3, 8]
    assert (details["max_step_tokens"], details["max_cells"]) == (64, 1000)
    assert (details["activation_dtype"], details["logits"]) == ("bfloat16", True)


def test_a_prepared_step_is_within_the_largest(export: Export) -> None:
    with pytest.raises(InvalidInputError, match="forward_sizes has 64, over the 32 of max_step"):
        export(Q4_K_M, max_step_tokens=32)


@pytest.mark.parametrize(
    "fields",
    [
        {"llama3_rope": True, "rope_scale": 2.0, "type": "BF16"},
        {"architecture": "qwen2", "tied": False, "type": "Q5_1"},
        {"architecture": "qwen3", "type": "Q4_0", "rope_dimension": 8},
        {"tied": False, "type": "F16"},
    ],
    ids="-".join,
)
def test_variants_of_models(
    tmp_path: Path, export: Export, open_cuda: OpenCuda, fields: dict[str, Any]
) -> None:
    source = tiny_gguf(tmp_path, **fields)
    tokens = random_tokens(100).tolist()
    logits = logits_of(open_cuda(export(source)), tokens)
    assert distance(logits, reference_logits(source, tokens)) < 1e-4


@pytest.mark.parametrize("tied", [False, True])
def test_packed_matrices_stay_packed_where_kernels_run(
    tmp_path: Path, export: Export, open_cuda: OpenCuda, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    def load_packed(*arguments: Any, packed: bool) -> Decoder:
        return load_decoder(*arguments, packed=not packed)

    monkeypatch.setattr("backends.cuda.executor.load_decoder", load_packed)
    source = tiny_gguf(tmp_path, architecture="qwen2", tied=tied, type="Q4_1")
    tokens = random_tokens(100).tolist()
    logits = logits_of(open_cuda(export(source)), tokens)
    assert distance(logits, reference_logits(source, tokens)) < 1e-4


def test_blocks_without_an_affine_form_become_numbers(
    tmp_path: Path, export: Export, open_cuda: OpenCuda
) -> None:
    source = tiny_gguf(tmp_path, type="TQ1_0", width=256, ffn_width=256, n_heads=16)
    details = Artifact.open(export(source)).manifest.details
    assert set(details["weights"]) == {"float32"}
    tokens = random_tokens(30).tolist()
    logits = logits_of(open_cuda(export(source)), tokens)
    assert distance(logits, reference_logits(source, tokens)) < 1e-4


def test_a_folder_with_a_tower_of_its_own(
    tmp_path: Path, export: Export, open_cuda: OpenCuda
) -> None:
    muse_glimmer(tmp_path, text={"num_hidden_layers": 4})
    words = {f"t{index}": index for index in range(96)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = export(tmp_path)
    tokens = list(range(60))
    logits = logits_of(open_cuda(folder), tokens)
    assert distance(logits, reference_logits(tmp_path, tokens)) < 1e-4
    with closing(open_cuda(folder)) as executor:
        assert executor.info.vision is not None


def test_several_shards(
    tmp_path: Path, export: Export, open_cuda: OpenCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 2**15)
    source = tiny_gguf(tmp_path, name="shards", type="Q4_1")
    folder = export(source)
    assert len(list(folder.glob(SHARD_PATTERN))) > 1
    tokens = random_tokens(40).tolist()
    logits = logits_of(open_cuda(folder), tokens)
    assert distance(logits, reference_logits(source, tokens)) < 1e-4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model-00001.safetensors", "not a safetensors file"),
        ("vision.safetensors", "not a safetensors file"),
    ],
)
def test_files_that_were_altered(
    tmp_path: Path, export: Export, open_cuda: OpenCuda, name: str, message: str
) -> None:
    folder = Path(copytree(export(Q4_K_M, MMPROJ), tmp_path / "artifact"))
    data = bytearray((folder / name).read_bytes())
    data[:16] = b"\xff" * 16
    (folder / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=message):
        open_cuda(folder)


@pytest.mark.parametrize(
    ("old", "message"),
    [
        (b'"token_embd.weight"', "tensor 'token_embd.weight' is missing"),
        (b'"output_norm.weight"', "tensor 'output_norm.weight' is missing"),
        (b'"blk.0.attn_q.scales"', r"attn_q.weight' has the shape"),
        (b'"blk.0.attn_q.biases"', r"attn_q.biases' is missing"),
        (b'"blk.0.attn_q.units"', r"attn_q.weight' is not a packed matrix of"),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, export: Export, open_cuda: OpenCuda, old: bytes, message: str
) -> None:
    folder = Path(copytree(export(Q4_K_M, MMPROJ), tmp_path / "artifact"))
    path = folder / "model-00001.safetensors"
    path.write_bytes(path.read_bytes().replace(old, old[:-2] + b'_"', 1))
    with pytest.raises(ArtifactError, match=message):
        open_cuda(folder)


_EXPORT = """
import sys
from pathlib import Path
from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig

most = 0
def watch(what, done):
    # Bytes that are the process's own: the file's pages belong to the page cache.
    global most
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            most = max(most, int(line.split()[1]) * 1024)

export_model(Path(sys.argv[1]), Path(sys.argv[2]), "cuda", ExportConfig(), watch)
assert "torch" not in sys.modules
print(most)
"""


def test_an_export_needs_little_memory_and_no_pytorch(tmp_path: Path) -> None:
    """80 MB of weights, of which the embedding alone would be 290 MB in float32."""
    source = tiny_gguf(
        tmp_path, type="Q8_0", width=2048, ffn_width=8192, n_heads=32, head_width=64, n_layers=1
    )
    command = [sys.executable, "-c", _EXPORT, str(source), str(tmp_path / "out")]
    most = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert most < 300 * 2**20
