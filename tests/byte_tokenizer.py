"""A text model whose ids 0 to 255 are the bytes; 256 is a special end token, 257 a plain word."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from astrai_cli.engine.detokenize import byte_alphabet
from astrai_cli.models.text import TextModel
from astrai_cli.models.tokenizer import SpecialTokens

END = 256
WORD = 257
VOCABULARY = 258


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_alphabet(), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.add_tokens([AddedToken("<wörd 言葉>", normalized=False)])
    return tokenizer


def byte_text(*eos: int) -> TextModel:
    """A text model on the byte tokenizer; eos: the ids that end an answer."""
    return TextModel("bytes", "llama", byte_tokenizer(), SpecialTokens(None, eos, False), None)
