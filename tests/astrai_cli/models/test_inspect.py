import json
from pathlib import Path

import pytest
from recording_backend import RecordingBackend
from tiny_models import CHAT_TEMPLATE, tiny_gguf

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


def test_refuses_other_things(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        describe(tmp_path)
    with pytest.raises(ModelFileError):
        describe(tmp_path / "absent")
