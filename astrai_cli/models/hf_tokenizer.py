"""A published tokenizer in the place of a model's own: the same tokens, and perhaps other words.

What a model file says of its tokenizer is what the converter understood of it. The
published one cuts text and adds special tokens as the model was trained to see them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from astrai_cli.errors import InvalidInputError
from astrai_cli.models import hf_text
from astrai_cli.models.tokenizer import END_TEXTS, SpecialTokens

if TYPE_CHECKING:
    from astrai_cli.models.text import TextModel


def with_hf_tokenizer(text: TextModel, path: Path, vocab_size: int) -> TextModel:
    """`text` with the tokenizer of a Hugging Face folder or file, and the folder's chat template.

    vocab_size: ids the model has; its tokenizers may name fewer. Tokens that end an answer
    by their texts end it in addition. Raises ModelFileError for what cannot be read, and
    InvalidInputError for a tokenizer whose ids are not this model's.
    """
    is_folder = path.is_dir()
    file = path / hf_text.TOKENIZER_NAME if is_folder else path
    tokenizer = hf_text.read_tokenizer(file)
    _check_fits(file, tokenizer, text, vocab_size)
    template = hf_text.read_chat_template(path) if is_folder else None
    return replace(
        text,
        tokenizer=tokenizer,
        special_tokens=_with_more_ends(text.special_tokens, tokenizer),
        chat_template=text.chat_template if template is None else template,
    )


def _check_fits(file: Path, tokenizer: Tokenizer, text: TextModel, vocab_size: int) -> None:
    last = max(tokenizer.get_vocab().values(), default=-1)
    if last >= vocab_size:
        raise _misfit(file, f"it has a token {last}, the model has {vocab_size} tokens")
    own = text.tokenizer
    special = text.special_tokens
    ids = set(tokenizer.get_vocab(with_added_tokens=False).values())
    ids |= {*special.eos} if special.bos is None else {special.bos, *special.eos}
    for token_id in sorted(ids):
        theirs, ours = tokenizer.id_to_token(token_id), own.id_to_token(token_id)
        if theirs != ours:
            raise _misfit(file, f"token {token_id} is {theirs!r:.60} there, {ours!r:.60} here")


def _misfit(file: Path, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"{file} is not the tokenizer of this model: {reason}", param="hf_tokenizer"
    )


def _with_more_ends(special: SpecialTokens, tokenizer: Tokenizer) -> SpecialTokens:
    added = tokenizer.get_added_tokens_decoder().items()
    more = (token_id for token_id, token in added if token.content in END_TEXTS)
    return replace(special, eos=tuple(dict.fromkeys([*special.eos, *more])))
