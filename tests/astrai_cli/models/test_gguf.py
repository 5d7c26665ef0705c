import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import tiny_gguf

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf import GGUFFile, ModelFile, to_float32
from astrai_cli.models.gguf_header import MAX_ARRAY_LENGTH, MAX_COUNT
from astrai_cli.models.tokenizer import build_tokenizer, read_chat_template, read_special_tokens
from astrai_cli.models.weights import Weights

U8, U32, F32, STRING, ARRAY, U64 = 0, 4, 6, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], offset: int, kind: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf(*keys: bytes, tensors: tuple[bytes, ...] = (), data: int = 0, version: int = 3) -> bytes:
    """A raw file; unlike a writer, this does whatever it is told."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    header += b"".join((*keys, *tensors))
    return header + bytes(-len(header) % 32 + data)


def open_bytes(folder: Path, content: bytes) -> GGUFFile:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return GGUFFile.open(path)


def use_everything(path: Path) -> None:
    with ModelFile.open(path) as model:
        build_tokenizer(model.metadata)
        read_special_tokens(model.metadata)
        read_chat_template(model.metadata)
        weights = Weights(model)
        for name, shape in weights.shapes.items():
            assert weights.get(name).shape == shape


def test_opens_what_a_writer_wrote(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    with ModelFile.open(path) as model:
        assert model.spec.name == "tiny"
        assert model.tensors["blk.0.ffn_down.weight"].shape == (64, 128)
        assert model.metadata.text("general.architecture") == "llama"
        assert len(model.metadata.texts("tokenizer.ggml.tokens")) == model.spec.vocab_size
        assert len(model.sha256) == 64
    use_everything(path)


def test_reads_a_file_of_scalars_and_arrays(tmp_path: Path) -> None:
    array = struct.pack("<IQ", U32, 3) + struct.pack("<3I", 1, 2, 3)
    keys = key("n", U32, struct.pack("<I", 7)), key("list", ARRAY, array)
    with open_bytes(tmp_path, gguf(*keys, tensors=(tensor("t", (4,), 0),), data=16)) as file:
        assert file.metadata.integer("n", 0, 10) == 7
        assert file.metadata.integers("list").tolist() == [1, 2, 3]
        assert file.blocks("t").shape == (1, 16)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF", "truncated"),
        (gguf(version=1), "version 1"),
        (gguf(version=3 << 24), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), f"at most {MAX_COUNT}"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), f"at most {MAX_COUNT}"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 60000), "truncated"),
        (gguf(key("a", U8, b"\1"), key("a", U8, b"\1")), "appears twice"),
        (gguf(key("a", 99, b"")), "unknown type 99"),
        (gguf(key(b"\xff", U8, b"\1")), "not UTF-8"),
        (gguf(key("a", STRING, struct.pack("<Q", 2**62))), "at most"),
        (gguf(key("a", ARRAY, struct.pack("<IQ", U8, 2**50))), f"at most {MAX_ARRAY_LENGTH}"),
        (gguf(key("a", ARRAY, struct.pack("<IQ", STRING, 2**22))), "truncated"),
        (gguf(key("a", ARRAY, struct.pack("<IQ", ARRAY, 1))), "array of arrays"),
        (gguf(key("general.alignment", U32, struct.pack("<I", 3))), "power of two"),
        (gguf(key("general.alignment", U64, struct.pack("<Q", 2**40))), "power of two"),
        (gguf(key("general.alignment", F32, struct.pack("<f", 32))), "power of two"),
        (gguf(tensors=(tensor("t", (), 0),)), "no dimensions"),
        (gguf(tensors=(tensor("t", (1,) * 5, 0),)), "at most 4"),
        (gguf(tensors=(tensor("t", (0,), 0),)), "positive sizes"),
        (gguf(tensors=(tensor("t", (4,), 0, kind=250),)), "unknown type 250"),
        (gguf(tensors=(tensor("t", (33,), 0, kind=8),), data=64), "multiple of 32"),
        (gguf(tensors=(tensor("t", (8,), 0),), data=31), "truncated"),
        (gguf(tensors=(tensor("t", (2**62, 2**62), 0),), data=32), "truncated"),
        (gguf(tensors=(tensor("t", (4,), 2**64 - 32),), data=32), "truncated"),
        (gguf(tensors=(tensor("t", (4,), 8),), data=64), "multiple of 32"),
        (gguf(tensors=(tensor("t", (16,), 0), tensor("u", (16,), 32)), data=128), "overlap"),
        (gguf(tensors=(tensor("t", (8,), 0), tensor("t", (8,), 32)), data=64), "appears twice"),
    ],
)
def test_refuses_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as raised:
        open_bytes(tmp_path, content)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_refuses_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        ModelFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        ModelFile.open(tmp_path)


def test_arrays_are_decoded_when_asked_for(tmp_path: Path) -> None:
    array = struct.pack("<IQ", STRING, 1) + text(b"\xff")
    with open_bytes(tmp_path, gguf(key("list", ARRAY, array))) as file:
        assert file.metadata.length("list") == 1
        with pytest.raises(ModelFileError, match="not UTF-8"):
            file.metadata.texts("list")
        for wrong in (file.metadata.integers, file.metadata.flags):
            with pytest.raises(ModelFileError, match="must be an array of"):
                wrong("list")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_numbers_are_finite_and_bounded(tmp_path: Path, value: float) -> None:
    with open_bytes(tmp_path, gguf(key("x", F32, struct.pack("<f", value)))) as file:
        with pytest.raises(ModelFileError, match="must be a number from 0 to 10"):
            file.metadata.number("x", 0, 10)
        with pytest.raises(ModelFileError, match="must be an integer from 0 to 10"):
            file.metadata.integer("x", 0, 10)
        with pytest.raises(ModelFileError, match="'y' is missing"):
            file.metadata.number("y", 0, 10)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    overrides = {"n_layers": 1, "width": 32, "ffn_width": 32, "type": "Q8_0", "llama3_rope": True}
    return tiny_gguf(tmp_path_factory.mktemp("pristine"), **overrides).read_bytes()


def test_survives_truncation_anywhere(tmp_path: Path, pristine: bytes) -> None:
    path = tmp_path / "model.gguf"
    lengths = {*range(0, 600), *range(600, len(pristine), 97), len(pristine) - 1}
    for length in sorted(lengths):
        path.write_bytes(pristine[:length])
        with pytest.raises(ModelFileError):
            ModelFile.open(path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_survives_damage_anywhere(tmp_path: Path, pristine: bytes, data: st.DataObject) -> None:
    damaged = bytearray(pristine)
    # Half of the damage goes where the lengths and counts are.
    ends = st.sampled_from([400, len(pristine)])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(ends.flatmap(lambda end: st.integers(0, end - 1)))
        damaged[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(damaged)
    try:
        use_everything(path)
    except ModelFileError:
        return


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=300))
def test_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + content)
    with pytest.raises(ModelFileError):
        ModelFile.open(path)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_dequantizes_block_formats(name: str) -> None:
    kind = GGMLQuantizationType[name]
    from gguf import GGML_QUANT_SIZES

    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    values = to_float32(np.zeros((3, 2 * block_bytes), np.uint8), kind)
    assert values.shape == (3, 2 * block_values)
    assert values.dtype == np.float32
