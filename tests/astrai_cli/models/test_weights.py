from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from tiny_models import tiny_gguf

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf import ModelFile, to_float32
from astrai_cli.models.weights import Weights

HEAD, ROTARY = 16, 12


def stored(model: ModelFile, name: str) -> NDArray[np.float32]:
    info = model.tensor(name)
    return to_float32(model.blocks(name), info.type).reshape(info.shape)


def angles(position: int) -> NDArray[np.float64]:
    return position * 10000.0 ** (-np.arange(0, ROTARY, 2) / ROTARY)


def rotate(head: NDArray[Any], position: int, first: slice, second: slice) -> NDArray[Any]:
    """Rotate a head's components `first` with `second`, pair by pair."""
    cos, sin = np.cos(angles(position)), np.sin(angles(position))
    rotated = head.copy()
    rotated[first] = head[first] * cos - head[second] * sin
    rotated[second] = head[first] * sin + head[second] * cos
    return rotated


def test_half_split_rows_score_as_neighbouring_ones_did(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, rope_dimension=ROTARY, qkv_bias=True)
    row = np.random.default_rng(1).standard_normal(64)
    with ModelFile.open(path) as model:
        weights = Weights(model)
        ours, theirs = {}, {}
        for which in "qk":
            name = f"blk.1.attn_{which}"
            ours[which] = weights.get(f"{name}.weight") @ row + weights.get(f"{name}.bias")
            theirs[which] = stored(model, f"{name}.weight") @ row + stored(model, f"{name}.bias")
    halves = slice(0, ROTARY // 2), slice(ROTARY // 2, ROTARY)
    neighbours = slice(0, ROTARY, 2), slice(1, ROTARY, 2)

    def score(parts: dict[str, NDArray[Any]], pairs: tuple[slice, slice]) -> float:
        # The last query head reads the last key head.
        query = rotate(parts["q"][-HEAD:], 7, *pairs)
        return float(query @ rotate(parts["k"][-HEAD:], 2, *pairs))

    assert score(ours, halves) == pytest.approx(score(theirs, neighbours))
    assert not np.allclose(ours["q"], theirs["q"])


def test_the_norms_of_heads_follow_their_rows(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, "muse-glimmer", sliding_window=8, logit_scale=1.0, logit_cap=20.0)
    with ModelFile.open(path) as model:
        weights = Weights(model)
        row = np.random.default_rng(1).standard_normal(64)
        for which in "qk":
            name = f"blk.1.attn_{which}"
            ours = (weights.get(f"{name}.weight") @ row)[:HEAD] * weights.get(f"{name}_norm.weight")
            theirs = (stored(model, f"{name}.weight") @ row)[:HEAD]
            theirs = theirs * stored(model, f"{name}_norm.weight")
            np.testing.assert_allclose(ours, np.concatenate([theirs[0::2], theirs[1::2]]))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_other_architectures_keep_their_order(tmp_path: Path, architecture: str) -> None:
    with ModelFile.open(tiny_gguf(tmp_path, architecture)) as model:
        weights = Weights(model)
        for name in weights.shapes:
            np.testing.assert_array_equal(weights.get(name), stored(model, name))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_rows_and_blocks_agree_with_the_whole(tmp_path: Path, kind: str) -> None:
    with ModelFile.open(tiny_gguf(tmp_path, type=kind)) as model:
        weights = Weights(model)
        for name in ("blk.0.attn_q.weight", "token_embd.weight"):
            whole = weights.get(name)
            rows = [5, 0, 5, len(whole) - 1]
            np.testing.assert_array_equal(weights.get_rows(name, rows), whole[rows])
            blocks = to_float32(weights.raw(name), GGMLQuantizationType[weights.type_name(name)])
            np.testing.assert_array_equal(blocks, whole)


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    with ModelFile.open(tiny_gguf(tmp_path)) as model:
        values = Weights(model).get("output_norm.weight")
    values += 1.0
    assert np.isfinite(values).all()


def test_refuses_values_that_are_not_finite(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    with ModelFile.open(path) as model:
        offset = model.tensor("output_norm.weight").offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 4] = np.float32("nan").tobytes()
    path.write_bytes(content)
    with (
        ModelFile.open(path) as model,
        pytest.raises(ModelFileError, match=r"'output_norm.weight' holds values not finite"),
    ):
        Weights(model).get("output_norm.weight")


def test_refuses_an_unknown_name(tmp_path: Path) -> None:
    with (
        ModelFile.open(tiny_gguf(tmp_path)) as model,
        pytest.raises(ModelFileError, match="'nothing' is missing"),
    ):
        Weights(model).get("nothing")


def test_reads_the_real_model(smollm2_gguf: Path) -> None:
    with ModelFile.open(smollm2_gguf) as model:
        weights = Weights(model)
        assert model.spec.tied_head
        assert weights.type_name("blk.0.attn_q.weight") == "Q4_1"
        embeddings = weights.get_rows("token_embd.weight", [0, 49151])
        assert embeddings.shape == (2, 576)
