from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_gguf

from astrai_cli.errors import ModelFileError
from astrai_cli.models.architectures import expected_tensors
from astrai_cli.models.gguf import ModelFile
from astrai_cli.models.spec import ModelSpec, RopeSpec
from astrai_cli.models.weights import Weights

MUSE: dict[str, Any] = {"sliding_window": 8, "logit_scale": 0.5, "logit_cap": 20.0}


def spec_of(path: Path) -> ModelSpec:
    with ModelFile.open(path) as model:
        assert expected_tensors(model.spec).keys() == model.tensors.keys()
        return model.spec


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "bias", "norm"),
    [("llama", False, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_maps_each_architecture(
    tmp_path: Path, architecture: str, bias: bool, norm: bool, tied: bool
) -> None:
    spec = spec_of(tiny_gguf(tmp_path, architecture, tied=tied))
    assert spec == ModelSpec(
        architecture=architecture,
        name="tiny",
        n_layers=2,
        width=64,
        ffn_width=128,
        n_heads=4,
        n_kv_heads=2,
        head_width=16,
        vocab_size=384,
        context_length=512,
        norm_eps=pytest.approx(1e-5),
        rope=RopeSpec(base=10000.0, dimension=16),
        tied_head=tied,
        qkv_bias=bias,
        qk_norm=norm,
        windows=(None, None),
    )


def test_maps_muse_glimmer(tmp_path: Path) -> None:
    spec = spec_of(tiny_gguf(tmp_path, "muse-glimmer", n_layers=6, tied=False, **MUSE))
    assert (spec.qk_norm, spec.qkv_bias, spec.embedding_norm, spec.gated_attention) == (
        True,
        False,
        True,
        True,
    )
    assert (spec.post_norm_eps, spec.logit_scale, spec.logit_cap) == (1e-8, 0.5, 20.0)
    # Every fourth layer, counted from the last, sees all and knows no positions.
    assert spec.windows == (8, None, 8, 8, 8, None)
    assert [spec.rotates(layer) for layer in range(6)] == [True, False, True, True, True, False]


def test_muse_glimmer_may_say_which_layers_slide(tmp_path: Path) -> None:
    pattern = (False, True, True)
    spec = spec_of(
        tiny_gguf(tmp_path, "muse-glimmer", n_layers=3, sliding_window_pattern=pattern, **MUSE)
    )
    assert spec.windows == (None, 8, 8)


def test_muse_glimmer_has_two_names_for_the_gate(tmp_path: Path) -> None:
    now = tiny_gguf(tmp_path, "muse-glimmer", **MUSE)
    former = tiny_gguf(tmp_path, "muse-glimmer", name="former", gate="attn_output_gate", **MUSE)
    with ModelFile.open(now) as first, ModelFile.open(former) as second:
        assert set(first.tensors) == set(second.tensors)
        name = "blk.1.attn_gate.weight"
        np.testing.assert_array_equal(Weights(first).get(name), Weights(second).get(name))


def test_refuses_a_gate_under_both_names(tmp_path: Path) -> None:
    both = {"blk.0.attn_gate.weight": np.zeros((64, 64), np.float32)}
    path = tiny_gguf(tmp_path, "muse-glimmer", both, gate="attn_output_gate", **MUSE)
    with pytest.raises(ModelFileError, match=r"also there as 'blk.0.attn_gate.weight'"):
        spec_of(path)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("sliding_window", "sliding_window' is missing"),
        ("logit_scale", "logit_scale' is missing"),
        ("logit_cap", "final_logit_softcapping' is missing"),
    ],
)
def test_muse_glimmer_needs_its_numbers(tmp_path: Path, missing: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        spec_of(tiny_gguf(tmp_path, "muse-glimmer", **MUSE | {missing: None}))


def test_llama_may_have_biases(tmp_path: Path) -> None:
    assert spec_of(tiny_gguf(tmp_path, qkv_bias=True)).qkv_bias


def test_head_width_may_differ_from_its_share(tmp_path: Path) -> None:
    spec = spec_of(tiny_gguf(tmp_path, "qwen3", head_width=32))
    assert (spec.head_width, spec.width, spec.n_heads) == (32, 64, 4)


def test_reads_rope_scaling(tmp_path: Path) -> None:
    linear = spec_of(tiny_gguf(tmp_path, rope_scale=4.0, rope_dimension=8)).rope
    assert (linear.scale, linear.dimension, linear.factors) == (4.0, 8, None)
    llama3 = spec_of(tiny_gguf(tmp_path, llama3_rope=True)).rope
    assert llama3.factors is not None
    assert (len(llama3.factors), llama3.factors[0], llama3.factors[-1]) == (8, 1.0, 8.0)


def test_reads_sliding_windows(tmp_path: Path) -> None:
    assert spec_of(tiny_gguf(tmp_path, sliding_window=8)).windows == (8, 8)
    pattern = spec_of(
        tiny_gguf(tmp_path, sliding_window=8, sliding_window_pattern=(True, False))
    ).windows
    assert pattern == (8, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"context_length": 0}, "context_length' is 0"),
        ({"n_kv_heads": 3}, "head_count' is 4, must be a multiple of 3"),
        ({"rope_dimension": 7}, "must be even"),
        ({"rope_dimension": 18}, "from 2 to 16"),
        ({"rope_base": float("nan")}, "freq_base' is nan"),
        ({"rope_base": 0.0}, "freq_base' is 0.0"),
        ({"sliding_window": 8, "sliding_window_pattern": (True,)}, "2 booleans"),
    ],
)
def test_refuses_numbers_that_cannot_be(
    tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        spec_of(tiny_gguf(tmp_path, **overrides))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"llama.context_length", b"llama.context_lengtH", "'llama.context_length' is missing"),
        (b"llama.block_count", b"llama.block_couNt", "'llama.block_count' is missing"),
        (b"blk.1.attn_v.weight", b"blk.1.attn_w.weight", "'blk.1.attn_v.weight' is missing"),
        (b"output_norm.weight", b"output_morn.weight", "'output_norm.weight' is missing"),
        (b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenS", "tokens' is missing"),
        (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lamma", "one of llama, qwen2, qwen3"),
    ],
)
def test_refuses_what_is_missing(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = tiny_gguf(tmp_path)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(ModelFileError, match=message):
        spec_of(path)


def test_refuses_a_tensor_too_many(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, tied=False, llama3_rope=True)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"rope_freqs.weight", b"rope_freqz.weight"))
    with pytest.raises(ModelFileError, match=r"'rope_freqz.weight' is not part of"):
        spec_of(path)


def test_qwen2_needs_its_biases(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'blk.0.attn_q.bias' is missing"):
        spec_of(tiny_gguf(tmp_path, "qwen2", qkv_bias=False))
