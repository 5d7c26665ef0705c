"""A model file's tokenizer metadata as a `tokenizers` Tokenizer and its special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from astrai_cli.models.metadata import Metadata
from astrai_cli.models.spec import MUSE_GLIMMER

TOKENS_KEY = "tokenizer.ggml.tokens"
PRE_KEY = "tokenizer.ggml.pre"

# How the published tokenizers cut text into pieces before merging.
_LLAMA3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PIECES = _LLAMA3_PIECES.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O_PIECES = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Texts of special tokens that end an answer whether or not a metadata key says so;
# many files name only one of theirs.
END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eot|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "</s>",
        # Code models' separators: what follows would be another file.
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<reponame>",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Here the end of a message is followed by more of the same answer.
_GOES_ON = frozenset({(MUSE_GLIMMER, "eom_token_id")})
# Architectures whose prompts begin with `bos`, which their published tokenizers leave to
# whoever makes the prompt.
BEGINS_WITH_BOS = frozenset({MUSE_GLIMMER})


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What a value of `tokenizer.ggml.pre` stands for.

    pieces: the pattern of a piece; None: GPT-2's, which `ByteLevel` has built in.
    lone_digits: every digit is a piece of its own, before the pattern is tried.
    whole_pieces: a piece that is a token is taken without merging.
    nfc: text is brought to Unicode's composed form first.
    add_bos: prompts begin with the begin-of-sequence token unless the file says otherwise.
    """

    pieces: str | None = None
    lone_digits: bool = False
    whole_pieces: bool = False
    nfc: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenizer(_LLAMA3_PIECES, whole_pieces=True, add_bos=True)
_GPT4O = PreTokenizer(_GPT4O_PIECES, whole_pieces=True)
_PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(lone_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama4": _GPT4O,
    "qwen2": PreTokenizer(_QWEN2_PIECES, nfc=True),
}


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids an engine must know.

    bos: begins a prompt; None where the vocabulary has no such token.
    eos: each of these ends an answer; the file's own end token is the first.
    add_bos: encoding a prompt with special tokens puts `bos` in front.
    """

    bos: int | None
    eos: tuple[int, ...]
    add_bos: bool


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """The file's tokenizer; encoding with special tokens adds `bos` where the model wants it.

    Raises ModelFileError for a kind of tokenizer that is not supported and for a
    vocabulary that contradicts itself.
    """
    pre = _pre_tokenizer(metadata)
    tokens, kinds = _vocabulary(metadata)
    tokenizer = Tokenizer(_merging_model(metadata, tokens, pre))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(pre)
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    special = read_special_tokens(metadata)
    leaves_bos = metadata.text("general.architecture", "") in BEGINS_WITH_BOS
    if special.add_bos and special.bos is not None and not leaves_bos:
        tokenizer.post_processor = TemplateProcessing(
            single=[tokens[special.bos], "$A"],
            special_tokens=[(tokens[special.bos], special.bos)],
        )
    return tokenizer


def read_special_tokens(metadata: Metadata) -> SpecialTokens:
    """Raises ModelFileError for ids outside the vocabulary, or if no token ends an answer."""
    pre = _pre_tokenizer(metadata)
    tokens, kinds = _vocabulary(metadata)
    architecture = metadata.text("general.architecture", "")
    keys = [key for key in _END_KEYS if (architecture, key) not in _GOES_ON]
    eos = [_token_id(metadata, key, len(tokens)) for key in keys]
    special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    eos += [
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if token in END_TEXTS and kind in special
    ]
    # A dict keeps the order and drops what was found twice.
    ends = tuple(dict.fromkeys(index for index in eos if index is not None))
    if not ends:
        raise metadata.error("tokenizer.ggml.eos_token_id", "the id of the end token")
    bos = _token_id(metadata, "bos_token_id", len(tokens))
    is_usual = pre.add_bos or architecture in BEGINS_WITH_BOS
    add_bos = metadata.flag("tokenizer.ggml.add_bos_token", is_usual)
    return SpecialTokens(bos, ends, add_bos and bos is not None)


def read_chat_template(metadata: Metadata) -> str | None:
    """The file's own Jinja chat template."""
    key = "tokenizer.chat_template"
    return metadata.text(key) if key in metadata else None


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    if metadata.text("tokenizer.ggml.model") != "gpt2":
        raise metadata.error("tokenizer.ggml.model", "'gpt2' (byte-level BPE)")
    name = metadata.text(PRE_KEY)
    if name not in _PRE_TOKENIZERS:
        raise metadata.error(PRE_KEY, f"one of {', '.join(_PRE_TOKENIZERS)}")
    pre = _PRE_TOKENIZERS[name]
    if pre is _GPT4O and not _keeps_contractions(metadata.texts(TOKENS_KEY)):
        # The name covers a family. A vocabulary that never joins a word with its
        # contraction was trained on Llama 3's pieces, so those are the ones to cut.
        return PreTokenizer(_LLAMA3_PIECES, whole_pieces=True)
    return pre


def _keeps_contractions(tokens: Sequence[str]) -> bool:
    contraction = re.compile(r"[a-z]'(?:s|t|re|ve|m|ll|d)")
    return any(contraction.search(token) for token in tokens)


def _vocabulary(metadata: Metadata) -> tuple[list[str], list[int]]:
    """Token texts and their types, by id."""
    tokens = metadata.texts(TOKENS_KEY)
    if not tokens or len(set(tokens)) != len(tokens):
        raise metadata.error(TOKENS_KEY, "at least one token, each only once")
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return tokens, [TokenType.NORMAL] * len(tokens)
    kinds = metadata.integers(key).tolist()
    if len(kinds) != len(tokens):
        raise metadata.error(key, f"one type for each of {len(tokens)} tokens")
    return tokens, kinds


def _merging_model(metadata: Metadata, tokens: Sequence[str], pre: PreTokenizer) -> BPE:
    key = "tokenizer.ggml.merges"
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = []
    for merge in metadata.texts(key):
        # A token may itself begin with a space, so the separator is sought after it.
        left, right = merge[:1] + (parts := merge[1:].partition(" "))[0], parts[2]
        if not {left, right, left + right} <= vocabulary.keys():
            raise metadata.error(key, f"pairs of tokens, which {merge[:80]!r} is not")
        merges.append((left, right))
    return BPE(vocabulary, merges, ignore_merges=pre.whole_pieces)


def _splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pieces is None)
    steps: list[pre_tokenizers.PreTokenizer] = [byte_level]
    if pre.pieces is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(pre.pieces), "isolated"))
    if pre.lone_digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence(steps)


def _token_id(metadata: Metadata, name: str, vocab_size: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    return metadata.integer(key, 0, vocab_size - 1) if key in metadata else None
