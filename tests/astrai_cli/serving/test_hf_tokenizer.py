"""A published tokenizer beside a model file: used by server and worker, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parrot import SAYING
from server_process import running_server
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import Whitespace

from astrai_cli.config import LimitsConfig, ServeConfig
from astrai_cli.errors import AstraiError, InvalidInputError
from astrai_cli.models.hf_text import read_tokenizer
from astrai_cli.models.text import TextModel
from astrai_cli.serving.server import run_server

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"


@pytest.fixture
def published(parrot: Path, tmp_path: Path) -> Path:
    """A folder with the model's own tokenizer, but that "A" is special, and a template."""
    tokenizer = TextModel.read(parrot).tokenizer
    tokenizer.add_special_tokens([AddedToken("A", special=True)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_server_and_worker_use_it(parrot: Path, published: Path) -> None:
    with running_server(parrot, limits={"hf_tokenizer": str(published)}) as server:
        chat: Any = [{"role": "user", "content": "hi"}]
        answer = server.openai().chat.completions.create(model="astrai", messages=chat)
    # A special token has no text; the prompt is what the folder's template makes of it.
    assert answer.choices[0].message.content == SAYING.removeprefix("A")
    expected = TextModel.read(parrot).tokenizer.encode("hi<|im_start|>assistant\n").ids
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected)


def test_a_file_leaves_the_models_template(parrot: Path, published: Path) -> None:
    own = TextModel.read(parrot)
    text = TextModel.read(parrot, published / "tokenizer.json")
    assert text.chat_template == own.chat_template
    assert TextModel.read(parrot, published).chat_template == TEMPLATE
    # Nothing is cut or filled up, whatever the file says.
    assert text.encode("hi there, you") == own.encode("hi there, you")


def test_more_tokens_end_an_answer(parrot: Path, published: Path) -> None:
    tokenizer = read_tokenizer(published / "tokenizer.json")
    size = tokenizer.get_vocab_size()
    spare = [token for token in ("<|eot_id|>", "<|im_end|>") if tokenizer.token_to_id(token)]
    tokenizer.save(str(published / "tokenizer.json"))
    text = TextModel.read(parrot, published)
    ids = [tokenizer.token_to_id(token) for token in spare]
    assert {*ids, *TextModel.read(parrot).special_tokens.eos} == {*text.special_tokens.eos}
    assert max(text.special_tokens.eos) < size


def swapped(tokens: dict[str, Any]) -> None:
    vocabulary = tokens["model"]["vocab"]
    vocabulary["b"], vocabulary["c"] = vocabulary["c"], vocabulary["b"]


def larger(tokens: dict[str, Any]) -> None:
    entry = {**tokens["added_tokens"][0], "id": 100_000, "content": "<new>"}
    tokens["added_tokens"].append(entry)
    tokens["model"]["vocab"]["<new>"] = 100_000


def renamed_end(tokens: dict[str, Any]) -> None:
    for entry in tokens["added_tokens"]:
        if entry["content"] == "<|im_end|>":
            entry["content"] = "<|end_of_it|>"
    vocabulary = tokens["model"]["vocab"]
    vocabulary["<|end_of_it|>"] = vocabulary.pop("<|im_end|>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swapped, "is not the tokenizer of this model: token "),
        (larger, "it has a token 100000, the model has "),
        (renamed_end, "'<|end_of_it|>' there, '<|im_end|>' here"),
    ],
)
def test_one_of_another_model_is_refused_before_the_worker_starts(
    parrot: Path, published: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    file = published / "tokenizer.json"
    tokens = json.loads(file.read_text())
    change(tokens)
    file.write_text(json.dumps(tokens))
    limits = LimitsConfig(hf_tokenizer=published)
    with pytest.raises(InvalidInputError) as caught:
        run_server(parrot, "eager", limits, ServeConfig(port=0), print)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_what_cannot_be_read_is_named(parrot: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("words")
    other = tmp_path / "other.json"
    tokenizer = Tokenizer.from_str(TextModel.read(parrot).tokenizer.to_str())
    tokenizer.decoder = None
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(other))
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "words", other):
        limits = LimitsConfig(hf_tokenizer=path)
        with pytest.raises(AstraiError) as caught:
            run_server(parrot, "eager", limits, ServeConfig(port=0), print)
        assert "tokenizer" in str(caught.value) or str(path) in str(caught.value)
