import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CHAT_TEMPLATE, tiny_gguf
from tokenizers import Tokenizer

from astrai_cli.errors import ModelFileError
from astrai_cli.models.gguf import GGUFFile
from astrai_cli.models.tokenizer import (
    SpecialTokens,
    build_tokenizer,
    read_chat_template,
    read_special_tokens,
)

DATA = Path(__file__).parents[2] / "data"
PRES = ["gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "llama4", "qwen2"]
ANY_TEXT = st.text(max_size=60) | st.text("aB1é²日👋'sSlL \t\r\n/<|>_", max_size=60)


def read(path: Path) -> tuple[Tokenizer, SpecialTokens]:
    with GGUFFile.open(path) as file:
        return build_tokenizer(file.metadata), read_special_tokens(file.metadata)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    folder = tmp_path_factory.mktemp("pres")
    return cache(lambda pre: read(tiny_gguf(folder, pre=pre, name=pre))[0])


def write_vocabulary(
    folder: Path,
    tokens: list[str],
    merges: list[str],
    kinds: list[int] | None = None,
    **ids: int,
) -> Path:
    """A vocabulary by itself; the writer leaves empty lists out."""
    path = folder / "vocabulary.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama4")
    writer.add_token_list(tokens)
    if kinds is not None:
        writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for name, value in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    return Tokenizer.from_file(str(DATA / "llama4-tokenizer.json"))


@pytest.fixture(scope="module")
def built() -> Tokenizer:
    return read(DATA / "llama4-tokenizer.gguf")[0]


@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT | st.just("<|start|>user<|message|>Hi there<|eot|>"))
def test_same_ids_as_the_published_tokenizer(
    published: Tokenizer, built: Tokenizer, text: str
) -> None:
    ids = built.encode(text).ids
    assert ids == published.encode(text).ids
    assert built.decode(ids, skip_special_tokens=False) == text


def test_same_vocabulary_as_the_published_tokenizer(published: Tokenizer, built: Tokenizer) -> None:
    assert built.get_vocab() == published.get_vocab()


@pytest.mark.parametrize("pre", PRES)
def test_text_survives(tiny: Callable[[str], Tokenizer], pre: str) -> None:
    tokenizer = tiny(pre)

    @settings(max_examples=60, deadline=None)
    @given(text=ANY_TEXT)
    def check(text: str) -> None:
        # Qwen's published tokenizers compose characters before anything else.
        wanted = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == wanted

    check()


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 1234's", ["a", "Ġ1234", "'s"]),
        ("smollm", "a 1234's", ["a", "Ġ", "1", "2", "3", "4", "'s"]),
        ("llama-bpe", "a 1234's", ["a", "Ġ", "123", "4", "'s"]),
        ("llama-bpe", "IT'S .\n\n x", ["IT", "'S", "Ġ.ĊĊ", "Ġx"]),
        ("qwen2", "a 1234's", ["a", "Ġ", "1", "2", "3", "4", "'s"]),
        ("qwen2", "x\n \n  y", ["x", "ĊĠĊ", "Ġ", "Ġy"]),
    ],
)
def test_cuts_pieces_as_published(
    tiny: Callable[[str], Tokenizer], pre: str, text: str, pieces: list[str]
) -> None:
    found = tiny(pre).pre_tokenizer.pre_tokenize_str(text)
    assert [piece for piece, _ in found] == pieces


def test_gpt4o_pieces_where_the_vocabulary_has_them(tmp_path: Path) -> None:
    tokens = ["n", "'", "t", "n'", "n't", "<|endoftext|>"]
    path = write_vocabulary(tmp_path, tokens, ["n '", "n' t"], [1, 1, 1, 1, 1, 3])
    tokenizer, _ = read(path)
    found = tokenizer.pre_tokenizer.pre_tokenize_str("HelloWorld don't a//\n/b")
    assert [piece for piece, _ in found] == ["Hello", "World", "Ġdon't", "Ġa", "//Ċ/", "b"]
    assert tokenizer.encode("n't").tokens == ["n't"]


def test_special_tokens_are_found_inside_text(tmp_path: Path) -> None:
    tokenizer, special = read(tiny_gguf(tmp_path))
    ids = tokenizer.encode("<|im_start|>user\nHi<tool_call><|im_end|>").ids
    assert (ids[0], ids[-2], ids[-1]) == (1, 383, 2)
    assert tokenizer.decode(ids) == "user\nHi<tool_call>"
    # <|endoftext|> ends an answer though no key names it.
    assert special == SpecialTokens(bos=1, eos=(2, 0), add_bos=False)


def test_adds_bos_where_the_file_says_so(tmp_path: Path) -> None:
    tokenizer, special = read(tiny_gguf(tmp_path, add_bos=True))
    assert special.add_bos
    assert tokenizer.encode("a").ids[0] == special.bos
    assert tokenizer.encode("a", add_special_tokens=False).ids[0] != special.bos


def test_ends_by_key_and_by_text(tmp_path: Path) -> None:
    tokens = ["a", "<|eot_id|>", "<|stop|>", "<|end|>", "</s>", "aa"]
    kinds = [TokenType.NORMAL, *[TokenType.CONTROL] * 3, TokenType.NORMAL, TokenType.NORMAL]
    path = write_vocabulary(tmp_path, tokens, ["a a"], kinds, eos_token_id=2)
    # "</s>" is ordinary text here.
    assert read(path)[1].eos == (2, 1, 3)


def test_reads_the_chat_template(tmp_path: Path) -> None:
    with GGUFFile.open(tiny_gguf(tmp_path)) as file:
        assert read_chat_template(file.metadata) == CHAT_TEMPLATE
    with GGUFFile.open(tiny_gguf(tmp_path, chat_template=None)) as file:
        assert read_chat_template(file.metadata) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "tokens' is missing"),
        ({"tokens": ["a", "b", "ab", "a"]}, "each only once"),
        ({"merges": []}, "merges' is missing"),
        ({"merges": ["b a"]}, "'b a' is not"),
        ({"merges": ["ab"]}, "'ab' is not"),
        ({"merges": [""]}, "'' is not"),
        ({"kinds": [1]}, "one type for each of 3 tokens"),
        ({"eos_token_id": 3}, "from 0 to 2"),
        ({"bos_token_id": 9}, "from 0 to 2"),
    ],
)
def test_refuses_contradictions(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"tokens": ["a", "b", "ab"], "merges": ["a b"], "eos_token_id": 0}
    read(write_vocabulary(tmp_path, **sound))
    with pytest.raises(ModelFileError, match=message):
        read(write_vocabulary(tmp_path, **sound | change))


def test_needs_an_end_token(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="eos_token_id' is missing"):
        read(write_vocabulary(tmp_path, ["a", "b", "ab"], ["a b"]))


def test_refuses_unknown_kinds(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="must be one of gpt-2, smollm, llama-bpe"):
        read(tiny_gguf(tmp_path, pre="unheard-of"))
    path = tiny_gguf(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"gpt2", b"bert"))
    with pytest.raises(ModelFileError, match=r"must be 'gpt2'"):
        read(path)


def test_real_vocabulary(smollm2_gguf: Path) -> None:
    tokenizer, special = read(smollm2_gguf)
    assert tokenizer.encode("Hello world 12<|im_end|>").ids == [19556, 905, 216, 33, 34, 2]
    assert (special.bos, special.eos[0], special.add_bos) == (1, 2, False)
