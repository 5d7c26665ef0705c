import pytest
from byte_tokenizer import END, VOCABULARY, WORD, byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from astrai_cli.engine.detokenize import Detokenizer, TokenBytes
from astrai_cli.errors import ModelFileError

TOKENIZER = byte_tokenizer()
TOKEN_BYTES = TokenBytes(TOKENIZER)


def pieces_of(ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(TOKEN_BYTES)
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, VOCABULARY + 3)))
def test_any_ids_give_the_tokenizers_own_text(ids: list[int]) -> None:
    assert "".join(pieces_of(ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=30))
def test_text_comes_in_whole_characters_as_soon_as_they_are_there(text: str) -> None:
    pieces = pieces_of(list(text.encode()))
    assert [piece for piece in pieces if piece] == list(text)
    assert pieces[-1] == ""


def test_a_truncated_character_ends_as_one_replacement() -> None:
    assert pieces_of(list("né👋".encode())[:-1]) == ["n", "", "é", "", "", "", "\ufffd"]


def test_special_tokens_are_skipped_and_other_added_tokens_are_text() -> None:
    assert pieces_of([END, WORD, 65]) == ["", "<wörd 言葉>", "A", ""]


def test_special_tokens_are_written_where_they_are_wanted() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES, write_special=True)
    assert detokenizer.feed(END) == TOKENIZER.id_to_token(END)
    assert detokenizer.feed(65) == "A"


def test_a_tokenizer_that_is_not_byte_level_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(ModelFileError, match="Metaspace"):
        TokenBytes(tokenizer)
