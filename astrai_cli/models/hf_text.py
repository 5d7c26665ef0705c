"""What a Hugging Face folder says about text: tokenizer, special tokens, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from astrai_cli.errors import ModelFileError
from astrai_cli.models.hf_config import MAX_JSON_BYTES, MODEL_TYPES, HfConfig, read_json
from astrai_cli.models.tokenizer import BEGINS_WITH_BOS, END_TEXTS, SpecialTokens

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
TEMPLATE_NAME = "chat_template.jinja"
FILES = (TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, GENERATION_CONFIG_NAME, TEMPLATE_NAME)
MAX_TOKENIZER_BYTES = 2**27


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a file, which neither cuts texts short nor fills them up.

    Raises ModelFileError.
    """
    text = _read_text(file, MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        # The library raises plain Exception for whatever it cannot parse.
        raise ModelFileError(f"{file}: {error}") from error
    # Files remember how they were last used in training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_special_tokens(folder: Path, config: HfConfig, tokenizer: Tokenizer) -> SpecialTokens:
    """Ids from the configs of generation and model, and by the texts that end any answer.

    Raises ModelFileError for ids outside the vocabulary, or if no token ends an answer.
    """
    text = config.part("text_config") if config.has("text_config") else config
    path = folder / GENERATION_CONFIG_NAME
    generation = HfConfig(read_json(path) if path.is_file() else {}, str(path))
    source = generation if generation.has("eos_token_id") else text
    last = text.integer("vocab_size", 1, 2**24) - 1
    named = source.values.get("eos_token_id")
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(end) is int and 0 <= end <= last for end in ends):
        raise source.error("eos_token_id", f"ids from 0 to {last}")
    added = tokenizer.get_added_tokens_decoder()
    ends = [*ends, *(index for index, token in added.items() if token.content in END_TEXTS)]
    if not ends:
        raise source.error("eos_token_id", "the id of the end token")
    bos = text.integer("bos_token_id", 0, last) if text.has("bos_token_id") else None
    is_family = MODEL_TYPES.get(config.values.get("model_type", "")) in BEGINS_WITH_BOS
    add_bos = bos is not None and (is_family or tokenizer.encode("").ids[:1] == [bos])
    return SpecialTokens(bos, tuple(dict.fromkeys(ends)), add_bos)


def read_chat_template(folder: Path) -> str | None:
    """The folder's Jinja template: a file of its own, or in the tokenizer's config."""
    if (folder / TEMPLATE_NAME).is_file():
        return _read_text(folder / TEMPLATE_NAME, MAX_JSON_BYTES)
    path = folder / TOKENIZER_CONFIG_NAME
    template: Any = read_json(path).get("chat_template") if path.is_file() else None
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(f"{path}: 'chat_template' must be a string")
    return template


def _read_text(path: Path, most_bytes: int) -> str:
    try:
        if path.stat().st_size > most_bytes:
            raise ModelFileError(f"{path} has more than {most_bytes} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ModelFileError(f"{path} is not text in UTF-8") from None
