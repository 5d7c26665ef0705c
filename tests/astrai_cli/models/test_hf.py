"""Hugging Face folders, against transformers' own models built at random."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import LINEAR_ROPE, LLAMA3_ROPE, PATCH_TOKEN, muse_glimmer, randomise
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference_decoder import relative_error
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.muse_glimmer import modeling_muse_glimmer

from astrai_cli.config import LimitsConfig
from astrai_cli.errors import ModelFileError
from astrai_cli.models.decoder import Decoder
from astrai_cli.models.hf import HfFolder
from astrai_cli.models.loader import load_decoder
from astrai_cli.models.safetensors import SafetensorsFile
from astrai_cli.models.source import open_source
from astrai_cli.models.text import TextModel
from astrai_cli.models.tokenizer import SpecialTokens
from astrai_cli.models.vision import load_vision_tower
from backends.base import SequenceStep, Step
from backends.registry import get_backend

SHAPES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def run(decoder: Decoder, h: torch.Tensor) -> NDArray[np.float32]:
    """Logits of one whole sequence, without a cache."""
    positions = torch.arange(len(h))

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: torch.Tensor, layer: int
    ) -> torch.Tensor:
        distance = positions[:, None] - positions
        window = decoder.spec.windows[layer] or len(h)
        output = torch.nn.functional.scaled_dot_product_attention(
            *(x.permute(2, 1, 0, 3) for x in (q, k, v)),
            attn_mask=(distance >= 0) & (distance < window),
            enable_gqa=True,
        )
        return output.permute(2, 1, 0, 3)

    logits: NDArray[np.float32] = decoder(h, positions, positions, attend).numpy()
    return logits


def load(folder: Path) -> Decoder:
    with HfFolder(folder) as opened:
        return load_decoder(opened)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LlamaConfig(**SHAPES), id="llama"),
        pytest.param(LlamaConfig(**SHAPES, tie_word_embeddings=True), id="llama-tied"),
        pytest.param(LlamaConfig(**SHAPES, rope_parameters=LLAMA3_ROPE), id="llama3-rope"),
        pytest.param(LlamaConfig(**SHAPES, rope_parameters=LINEAR_ROPE), id="linear-rope"),
        pytest.param(Qwen2Config(**SHAPES | {"head_dim": 12}), id="qwen2"),
        pytest.param(
            Qwen2Config(
                **SHAPES | {"head_dim": 12},
                use_sliding_window=True,
                sliding_window=7,
                max_window_layers=1,
            ),
            id="qwen2-windows",
        ),
        pytest.param(Qwen3Config(**SHAPES, tie_word_embeddings=True), id="qwen3"),
    ],
)
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_same_logits_as_transformers(tmp_path: Path, config: PretrainedConfig, shard: str) -> None:
    model = randomise(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 96, 60))
    decoder = load(tmp_path)
    expected = model(tokens[None]).logits[0].numpy()
    assert relative_error(run(decoder, decoder.embed(tokens)), expected) < 1e-4


@settings(max_examples=12, deadline=None)
@given(
    n_layers=st.integers(4, 9),
    window=st.integers(1, 40),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_width=st.sampled_from([8, 16, 32]),
    seed=st.integers(0, 2**31),
)
def test_same_logits_as_muse_glimmer(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    n_layers: int,
    window: int,
    kv_heads: int,
    group: int,
    head_width: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("muse")
    text = {
        "num_hidden_layers": n_layers,
        "sliding_window": window,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * group,
        "head_dim": head_width,
        "hidden_size": 12 * kv_heads * group,
    }
    model = muse_glimmer(folder, text=text, seed=seed)
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, PATCH_TOKEN, 50))
    decoder = load(folder)
    expected = model(tokens[None]).logits[0].numpy()
    assert relative_error(run(decoder, decoder.embed(tokens)), expected) < 1e-4


@pytest.fixture(scope="module")
def positions_in_row_order() -> Iterator[None]:
    """Undo that transformers samples the position table with rows and columns exchanged.

    It then numbers the patches of images that are not square along the wrong side. The
    checked numbers of `test_eager_muse`, of an image that is not, are in row order.
    """
    patch = pytest.MonkeyPatch()
    sample = modeling_muse_glimmer.get_vision_interpolation_indices_and_weights
    patch.setattr(
        modeling_muse_glimmer,
        "get_vision_interpolation_indices_and_weights",
        lambda grid, **options: sample(grid[:, [0, 2, 1]], **options),
    )
    yield
    patch.undo()


@pytest.mark.usefixtures("positions_in_row_order")
@settings(max_examples=12, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    n_layers=st.integers(1, 6),
    side=st.integers(1, 6),
    seed=st.integers(0, 2**31),
)
def test_same_embeddings_as_muse_glimmer(
    tmp_path_factory: pytest.TempPathFactory,
    grid: tuple[int, int],
    n_layers: int,
    side: int,
    seed: int,
) -> None:
    """Images wide and high, smaller and larger than a tile, and the logits around them."""
    folder = tmp_path_factory.mktemp("muse")
    sides = {"pos_emb_height": side, "pos_emb_width": side}
    model = muse_glimmer(
        folder, text={}, vision={"num_hidden_layers": n_layers, **sides}, seed=seed
    )
    rows, columns = (2 * cells for cells in grid)
    image = torch.randn(3, 4 * rows, 4 * columns)
    patches = image.view(3, rows, 4, columns, 4).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    given = {
        "pixel_values": patches.repeat(1, 2),
        "image_grid_thw": torch.tensor([[1, rows, columns]]),
    }
    with HfFolder(folder) as opened:
        decoder, source = load_decoder(opened), opened.vision()
        assert source is not None
        embeddings = load_vision_tower(source)(image)
    [expected] = model.model.get_image_features(**given).pooler_output
    assert relative_error(embeddings.numpy(), expected.numpy()) < 1e-4

    n = len(embeddings)
    tokens = torch.tensor([3, 4, 5, *[PATCH_TOKEN] * n, 6, 7])
    h = decoder.embed(tokens)
    h[3 : 3 + n] = embeddings
    logits = model(tokens[None], **given).logits[0].numpy()
    assert relative_error(run(decoder, h), logits) < 1e-4


@pytest.fixture(scope="module")
def muse_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("muse")
    muse_glimmer(folder, text={})
    return folder


def copy_with(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The folder again, its config changed."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        (None, "model_type", "mamba", "'model_type' is 'mamba', must be one of llama"),
        (None, "text_config", [], "'text_config' is .*, must be an object"),
        ("text_config", "hidden_size", "48", "'hidden_size' is '48'"),
        ("text_config", "hidden_size", 52, r"'token_embd.weight' has the shape \[96, 48\]"),
        ("text_config", "max_position_embeddings", 0, "'max_position_embeddings' is 0"),
        ("text_config", "num_attention_heads", 3, "shape"),
        ("text_config", "num_hidden_layers", 3, "'layer_types' is"),
        ("text_config", "hidden_activation", "gelu", "must be 'silu'"),
        ("text_config", "attention_bias", True, "'attention_bias' is True"),
        ("text_config", "layer_rope_theta", [0, 0, 0, 0], "in layers that slide and 0"),
        ("text_config", "rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}, "factor"),
        ("text_config", "rms_norm_eps", float("nan"), "'rms_norm_eps' is nan"),
    ],
)
def test_refuses_configs(
    tmp_path: Path, muse_folder: Path, *, part: str | None, key: str, value: Any, message: str
) -> None:
    def change(config: dict[str, Any]) -> None:
        (config if part is None else config[part])[key] = value

    with pytest.raises(ModelFileError, match=message):
        HfFolder(copy_with(muse_folder, tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_refuses_what_is_no_config(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match="JSON"):
        HfFolder(tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "model.bin", ""]
)
def test_an_index_names_only_files_beside_it(tmp_path: Path, muse_folder: Path, name: str) -> None:
    folder = copy_with(muse_folder, tmp_path, lambda config: None)
    index = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="not a file beside it"):
        HfFolder(folder)


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        ({}, 2**63, "longer than the file"),
        ({}, 1, "not JSON"),
        ([], None, "not an object"),
        ({"a": 1}, None, "must be F32, F16, BF16"),
        ({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, None, "'a' is I64"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, None, "no shape"),
        ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, None, "no shape"),
        ({"a": {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}}, None, "no shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, None, "no shape"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, None, "lie in the file"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, None, "lie in the file"),
        ({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, None, "lie in"),
    ],
)
def test_refuses_headers(tmp_path: Path, header: Any, length: int | None, message: str) -> None:
    path = safetensors(tmp_path / "model.safetensors", header, bytes(8), length)
    with pytest.raises(ModelFileError, match=message):
        SafetensorsFile(path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_folders_are_refused_or_read(muse_folder: Path, data: st.DataObject) -> None:
    """A changed or cut file ends in ModelFileError or in finite numbers."""
    path = muse_folder / "model.safetensors"
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    content = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, header + 100), min_size=0, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        with HfFolder(muse_folder) as folder:
            assert all(np.isfinite(folder.get(name)).all() for name in folder.shapes)
    except ModelFileError:
        pass
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_reads_half_precision(tmp_path: Path, kind: torch.dtype) -> None:
    model = randomise(AutoModelForCausalLM.from_config(LlamaConfig(**SHAPES)))
    model.to(kind).save_pretrained(tmp_path)
    with HfFolder(tmp_path) as folder:
        expected = model.model.layers[1].mlp.up_proj.weight.float().numpy()
        np.testing.assert_array_equal(folder.get("blk.1.ffn_up.weight"), expected)
        np.testing.assert_array_equal(
            folder.get_rows("blk.1.ffn_up.weight", [5, 0]), expected[[5, 0]]
        )


def text_files(folder: Path) -> Path:
    """Give a folder a tokenizer that begins prompts with token 1, and a template."""
    vocabulary = {f"t{index}": index for index in range(93)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|eot|>"])
    tokenizer.post_processor = TemplateProcessing(single="t1 $A", special_tokens=[("t1", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    templates = [{"name": "default", "template": "{{ messages }}"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    return folder


def test_reads_what_a_folder_says_about_text(tmp_path: Path, muse_folder: Path) -> None:
    folder = text_files(copy_with(muse_folder, tmp_path, lambda config: None))
    text = TextModel.read(folder)
    assert text.name == tmp_path.name
    assert text.encode_prompt("t5 t6") == [1, 5, 6]
    assert text.special_tokens == SpecialTokens(bos=1, eos=(2, 93), add_bos=True)
    assert text.chat_template == "{{ messages }}"
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (folder / "chat_template.jinja").write_text("own")
    text = TextModel.read(folder)
    assert (text.special_tokens.eos, text.chat_template) == ((7, 8, 93), "own")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("generation_config.json", '{"eos_token_id": [96]}', "ids from 0 to 95"),
        ("generation_config.json", '{"eos_token_id": "2"}', "ids from 0 to 95"),
        ("tokenizer_config.json", '{"chat_template": 7}', "'chat_template' must be a string"),
    ],
)
def test_refuses_what_a_folder_says_about_text(
    tmp_path: Path, muse_folder: Path, *, name: str, content: str, message: str
) -> None:
    folder = text_files(copy_with(muse_folder, tmp_path, lambda config: None))
    (folder / name).write_text(content)
    with pytest.raises(ModelFileError, match=message):
        TextModel.read(folder)


def test_the_digest_is_that_of_all_files(tmp_path: Path, muse_folder: Path) -> None:
    folder = text_files(copy_with(muse_folder, tmp_path, lambda config: None))
    digests = []
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        with open_source(folder) as source:
            digests.append(source.sha256)
        with (folder / name).open("a") as file:
            file.write(" ")
    assert len(set(digests)) == 4


def test_the_eager_executor_runs_folders(muse_folder: Path) -> None:
    executor = get_backend("eager").open(muse_folder, LimitsConfig(threads=1))
    executor.allocate(64)
    pages = np.arange(1, dtype=np.int32)
    tokens = np.arange(20, dtype=np.int32)
    logits = executor.step(Step([SequenceStep(tokens, 0, pages, 20)], 64)).logits
    decoder = load(muse_folder)
    expected = run(decoder, decoder.embed(torch.from_numpy(tokens)))
    assert relative_error(logits, expected) < 1e-4
    assert executor.encode_image(np.zeros((8, 16, 3), np.uint8)).shape == (2, 48)
    executor.close()
