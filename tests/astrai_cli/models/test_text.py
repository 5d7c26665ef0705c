from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from astrai_cli.models.text import TextModel


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.read(tiny_gguf(tmp_path_factory.mktemp("bos"), add_bos=True))


def test_a_prompt_begins_with_bos_once(with_bos: TextModel) -> None:
    bos = with_bos.special_tokens.bos
    plain = with_bos.encode_prompt("hello")
    assert plain[0] == bos
    assert plain.count(bos) == 1
    assert with_bos.encode_prompt(f"{with_bos.bos_token}hello") == plain


def test_special_tokens_in_a_prompt_are_recognised(tmp_path: Path) -> None:
    text = TextModel.read(tiny_gguf(tmp_path, name="named"))
    assert text.name == "named-llama-0"
    assert text.eos_token == "<|im_end|>"
    assert text.encode_prompt("<|im_end|>")[-1] == text.special_tokens.eos[0]
    assert text.chat_template is not None
