"""Folders that the mlx backend exports: by mlx-lm itself, and against their sources."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copytree
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hf_models import muse_glimmer
from mlx_lm.utils import load, load_model
from muse_fixtures import CHAT_MODEL, MMPROJ, Q4_K_M, distance
from numpy.typing import NDArray
from step_texts import random_tokens
from tiny_models import VOCABULARY, tiny_gguf
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from astrai_cli.artifact import Artifact
from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ArtifactError, InvalidInputError, ModelFileError
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.weights import Weights
from backends import shards
from backends.affine import GROUP
from backends.base import SequenceStep, Step
from backends.mlx.architecture import describe
from backends.registry import get_backend

Export = Callable[..., Path]
Floats = NDArray[np.float32]


def our_logits(backend: str, source: Path, tokens: list[int]) -> Floats:
    """Logits of all rows of a text."""
    with closing(get_backend(backend).open(source, LimitsConfig())) as executor:
        executor.allocate(256)
        ids, pages = np.array(tokens, dtype=np.int32), np.arange(1, dtype=np.int32)
        return executor.step(Step([SequenceStep(ids, 0, pages, len(ids))], 256)).logits.copy()


def their_logits(folder: Path, tokens: list[int]) -> Floats:
    """Those of mlx-lm alone."""
    model, _ = load_model(folder)
    return np.array(model(mx.array([tokens]))[0].astype(mx.float32))


@pytest.fixture(scope="session")
def smollm2(export: Export, smollm2_gguf: Path) -> Path:
    return export(smollm2_gguf)


def test_mlx_lm_runs_the_real_model(smollm2: Path, smollm2_gguf: Path) -> None:
    """Its tokenizer and its logits are ours, and so are those of the reference."""
    _, tokenizer = load(str(smollm2))
    text = "The capital of France is Paris, and"
    ids = tokenizer.encode(text)
    assert ids == Artifact.open(smollm2).tokenizer().encode(text).ids
    assert tokenizer.eos_token_ids == {*Artifact.open(smollm2).special_tokens.eos}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert "<|im_start|>user\nHi<|im_end|>" in prompt
    logits = our_logits("mlx", smollm2, ids)
    assert distance(logits, their_logits(smollm2, ids)) < 1e-3
    assert distance(logits, our_logits("eager", smollm2_gguf, ids)) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mlx_lm_runs_muse_glimmer(export: Export, dtype: str) -> None:
    folder = export(Q4_K_M, MMPROJ, dtype)
    _, tokenizer = load(str(folder))
    tokens = tokenizer.encode("<|start|>user<|message|>" + "Which colour is it? " * 2)
    # Rows are rounded alike, but the sums of attention in another order.
    assert distance(our_logits("mlx", folder, tokens), their_logits(folder, tokens)) < 1e-3


# What rounding a group's scale and bias to the number type costs a weight, of both.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-23}


def check_weights(source: Path, folder: Path, dtype: str) -> dict[str, float]:
    """Dequantize every matrix with MLX, and compare with the source; relative errors by type."""
    stored: dict[str, mx.array] = {}
    for file in folder.glob("model*.safetensors"):
        stored |= mx.load(str(file))  # type: ignore[arg-type]  # depends on the suffix
    errors: dict[str, float] = {}
    with ModelFile.open(source) as model:
        weights = Weights(model)
        for tensor in describe(weights).tensors:
            expected = weights.get(tensor.source)
            if expected.ndim == 1:
                values = np.array(stored[tensor.name].astype(mx.float32)) - tensor.offset
                assert np.abs(values - expected).max() <= 2 * ROUNDING[dtype] * 4
                continue
            parts = [stored[f"{tensor.module}.{part}"] for part in ("weight", "scales", "biases")]
            scales, biases = (part.astype(mx.float32) for part in parts[1:])
            bits = parts[0].shape[1] * 32 // expected.shape[1]
            found = mx.dequantize(parts[0], scales, biases, group_size=GROUP, bits=bits)
            difference = np.abs(np.array(found) - expected)
            kind = weights.type_name(tensor.source)
            errors[kind] = max(errors.get(kind, 0.0), distance(np.array(found), expected))
            if kind != "Q6_K":
                reach = (2**bits - 1) * np.abs(np.array(scales)) + np.abs(np.array(biases))
                bound = ROUNDING[dtype] * reach + 2**-20 * ROUNDING["float16"]
                assert (difference <= bound.repeat(GROUP, axis=1)).all()
    return errors


@pytest.mark.parametrize("dtype", ROUNDING)
def test_weights_of_the_fixture(export: Export, dtype: str) -> None:
    folder = export(Q4_K_M, MMPROJ, dtype)
    errors = check_weights(Q4_K_M, folder, dtype)
    assert set(errors) == {"Q4_K", "Q6_K"}
    assert errors["Q6_K"] < 0.008
    told = Artifact.open(folder).manifest.details["weights"]
    assert (told["Q4_K"]["bits"], told["Q6_K"]["bits"]) == (4, 8)
    assert told["Q6_K"]["relative_error"] == pytest.approx(errors["Q6_K"], rel=0.3)


def test_weights_of_the_real_model(smollm2: Path, smollm2_gguf: Path) -> None:
    errors = check_weights(smollm2_gguf, smollm2, "float32")
    assert set(errors) == {"Q4_1", "Q8_0"}


@pytest.mark.parametrize(
    "fields",
    [
        {"llama3_rope": True, "rope_scale": 2.0},
        {"rope_scale": 4.0, "type": "Q8_0"},
        {"architecture": "qwen2", "tied": False, "type": "Q5_1"},
        {"qkv_bias": True, "type": "BF16"},
    ],
    ids="-".join,
)
def test_variants_of_architectures(tmp_path: Path, export: Export, fields: dict[str, Any]) -> None:
    source = tiny_gguf(tmp_path, name="-".join(fields), **fields)
    folder = export(source)
    tokens = random_tokens(100).tolist()
    logits = our_logits("mlx", folder, tokens)
    assert distance(logits, our_logits("eager", source, tokens)) < 1e-4
    assert distance(logits, their_logits(folder, tokens)) < 1e-4


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"architecture": "qwen3", "sliding_window": 8},
            InvalidInputError,
            "no qwen3 with sliding",
        ),
        ({"sliding_window": 8}, InvalidInputError, "no llama with sliding windows in every layer"),
        ({"rope_dimension": 8}, InvalidInputError, "8 of 16 components rotate"),
        (
            {"architecture": "muse-glimmer", "sliding_window": 8, "logit_scale": 1.0}
            | {"logit_cap": 20.0, "tied": False},
            ModelFileError,
            "layer 0 have different weights",
        ),
    ],
    ids=["qwen3 windows", "all slide", "half rotates", "norms of heads"],
)
def test_what_mlx_lm_has_no_form_for(
    tmp_path: Path, export: Export, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(tiny_gguf(tmp_path, name=message[:5], **fields))


def test_a_folder_with_a_tower_of_its_own(tmp_path: Path, export: Export) -> None:
    muse_glimmer(tmp_path, text={"num_hidden_layers": 4})
    words = {f"t{index}": index for index in range(96)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = export(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    rows = []
    for backend, source in (("eager", tmp_path), ("mlx", folder)):
        with closing(get_backend(backend).open(source, LimitsConfig())) as executor:
            rows.append(executor.encode_image(pixels))
    assert distance(rows[1], rows[0]) < 1e-4
    tokens = list(range(60))
    expected = our_logits("eager", tmp_path, tokens)
    assert distance(our_logits("mlx", folder, tokens), expected) < 1e-4


def test_several_shards(tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 2**15)
    source = tiny_gguf(tmp_path, name="shards", type="Q4_1")
    folder = export(source)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {*index["weight_map"].values()}
    assert len(files) > 1
    assert {file.name for file in folder.glob("model-*.safetensors")} == files
    loaded = {name for file in files for name in mx.load(str(folder / file))}
    assert loaded == {*index["weight_map"]}
    tokens = random_tokens(40).tolist()
    expected = our_logits("eager", source, tokens)
    assert distance(our_logits("mlx", folder, tokens), expected) < 1e-4


_EXPORT = """
import resource, sys
from pathlib import Path
from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig

def peak():
    # Bytes that are the process's own: the file's pages belong to the page cache.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

most = 0
def watch(what, done):
    global most
    most = max(most, peak())

export_model(Path(sys.argv[1]), Path(sys.argv[2]), "mlx", ExportConfig(), watch)
print(most)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """80 MB of weights, of which the embedding alone would be 290 MB in float32."""
    source = tiny_gguf(
        tmp_path,
        name="wide",
        type="Q8_0",
        width=2048,
        ffn_width=8192,
        n_heads=32,
        head_width=64,
        n_layers=1,
    )
    command = [sys.executable, "-c", _EXPORT, str(source), str(tmp_path / "out")]
    most = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert most < 300 * 2**20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", r"cannot be loaded by mlx-lm"),
        ("config.json", r"cannot be loaded by mlx-lm"),
        ("vision.safetensors", r"vision\.safetensors: "),
    ],
)
def test_files_that_were_altered(tmp_path: Path, export: Export, name: str, message: str) -> None:
    folder = Path(copytree(export(Q4_K_M, MMPROJ), tmp_path / "artifact"))
    data = bytearray((folder / name).read_bytes())
    data[:16] = b"\xff" * 16
    (folder / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=message):
        get_backend("mlx").open(folder, LimitsConfig())


def test_the_trained_model_keeps_its_numbers(export: Export) -> None:
    """Q8_0 is exact, so float32 is what the reference computes in."""
    tokens = random_tokens(200).clip(0, VOCABULARY - 1).tolist()
    logits = our_logits("mlx", export(CHAT_MODEL), tokens)
    assert distance(logits, our_logits("eager", CHAT_MODEL, tokens)) < 1e-4
