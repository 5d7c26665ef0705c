import json
from pathlib import Path

import pytest
from muse_fixtures import MMPROJ
from recording_backend import RecordingBackend
from tiny_models import CHAT_TEMPLATE, tiny_gguf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig

from astrai_cli.artifact import export_model
from astrai_cli.config import ExportConfig
from astrai_cli.errors import ArtifactError, ModelFileError
from astrai_cli.models.inspect import describe


def test_describes_a_model_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, type="Q8_0")
    found = describe(path)
    assert (found.kind, found.spec.n_layers, found.artifact) == ("gguf", 2, None)
    assert {group.type: group.count for group in found.tensors} == {"Q8_0": 15, "F32": 5}
    assert found.parameters == sum(group.values for group in found.tensors)
    assert found.memory.weights == sum(group.bytes for group in found.tensors)
    # 2 layers of keys and values, 2 heads of 16, 2 bytes each.
    assert found.memory.cache_float16_per_1000_tokens == 2 * 2 * 2 * 16 * 2 * 1000
    assert found.memory.cache_float32_per_1000_tokens == 2 * 2 * 2 * 16 * 4 * 1000
    assert found.tokenizer.pre == "smollm"
    assert found.tokenizer.eos == {2: "<|im_end|>", 0: "<|endoftext|>"}
    assert found.tokenizer.vocab_size == 384
    assert found.chat_template == CHAT_TEMPLATE
    assert found.files[0].size == path.stat().st_size
    assert json.loads(found.model_dump_json())["spec"]["width"] == 64


def test_describes_an_artifact(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    source, target = tiny_gguf(tmp_path), tmp_path / "out"
    export_model(source, target, "recording", ExportConfig(), lambda what, fraction: None)
    found = describe(target)
    assert found.kind == "artifact"
    assert found.artifact is not None
    assert found.artifact.backend == "recording"
    assert found.artifact.details == {"methods": ["forward"]}
    assert found.memory.weights == 100
    assert found.parameters == describe(source).parameters
    assert found.tokenizer.eos == describe(source).tokenizer.eos


def test_describes_what_sees_images(tmp_path: Path, recording_backend: RecordingBackend) -> None:
    source, target = tiny_gguf(tmp_path, width=256), tmp_path / "out"
    export_model(source, target, "recording", ExportConfig(mmproj=MMPROJ), lambda what, done: None)
    found = json.loads(describe(target).model_dump_json())
    assert found["artifact"]["vision"]["mmproj"]["name"] == MMPROJ.name
    assert found["artifact"]["vision"]["spec"]["grid_side"] == 4


def test_describes_a_hugging_face_folder(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    words = {f"t{index}": index for index in range(96)}
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(tmp_path / "tokenizer.json"))
    found = describe(tmp_path)
    assert (found.kind, found.spec.width, found.artifact) == ("hf", 48, None)
    assert [(group.type, group.values) for group in found.tensors] == [("F32", found.parameters)]
    assert found.memory.weights == 4 * found.parameters
    assert found.tokenizer.eos == {2: "t2"}
    names = ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]
    assert [file.name for file in found.files] == names
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert [file.size for file in found.files] == sizes


def test_refuses_other_things(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        describe(tmp_path)
    with pytest.raises(ModelFileError):
        describe(tmp_path / "absent")
