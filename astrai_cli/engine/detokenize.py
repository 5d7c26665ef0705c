"""From token ids to text, a token at a time, without ever cutting a character."""

from __future__ import annotations

import codecs
from functools import cache

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from astrai_cli.errors import ModelFileError


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 for itself, 256 onward for the rest."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + n): byte for n, byte in enumerate(others)}


class TokenBytes:
    """The bytes each token of a byte-level BPE tokenizer stands for, looked up once each.

    Special tokens, and ids the tokenizer does not have, stand for no bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ModelFileError where the tokenizer does not decode byte by byte."""
        if not isinstance(tokenizer.decoder, ByteLevel):
            raise ModelFileError(
                f"the tokenizer's decoder is {type(tokenizer.decoder).__name__}; "
                "only byte-level ones are supported"
            )
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._bytes = {token_id: b"" for token_id, token in added.items() if token.special}

    def __getitem__(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._spell(self._tokenizer.id_to_token(token_id) or "")
        return found

    def named(self, token_id: int) -> bytes:
        """As the bytes, but a special token stands for its name."""
        return self[token_id] or (self._tokenizer.id_to_token(token_id) or "").encode()

    @staticmethod
    def _spell(token: str) -> bytes:
        alphabet = byte_alphabet()
        try:
            return bytes(alphabet[char] for char in token)
        except KeyError:
            return token.encode()


class Detokenizer:
    """One answer's text. All pieces and the flush together are the decoding of all ids."""

    def __init__(self, token_bytes: TokenBytes, *, write_special: bool = False) -> None:
        """write_special: whether special tokens are written by their names."""
        self._spell = token_bytes.named if write_special else token_bytes.__getitem__
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._spell(token_id))

    def flush(self) -> str:
        """U+FFFD where the last character was left incomplete."""
        return self._decoder.decode(b"", final=True)
