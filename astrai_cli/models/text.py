"""The part of a model that deals in text: its tokenizer, special tokens and chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from astrai_cli.artifact import Artifact, is_artifact
from astrai_cli.errors import InvalidInputError
from astrai_cli.models.hf_tokenizer import with_hf_tokenizer
from astrai_cli.models.source import model_name, open_source
from astrai_cli.models.spec import ModelSpec
from astrai_cli.models.tokenizer import SpecialTokens


@dataclass(frozen=True, slots=True)
class TextModel:
    """What turns a conversation into tokens, and back.

    name: that of the file it comes from, as metadata's names are for people and may
    be shared by models. architecture: as in ModelSpec. chat_template: Jinja, None where
    the model has none.
    """

    name: str
    architecture: str
    tokenizer: Tokenizer
    special_tokens: SpecialTokens
    chat_template: str | None

    @classmethod
    def read(cls, source: Path, hf_tokenizer: Path | None = None) -> TextModel:
        """From an artifact folder or a model.

        hf_tokenizer: what with_hf_tokenizer takes instead of the model's own. Raises
        ArtifactError, ModelFileError, and as with_hf_tokenizer does.
        """
        text, spec = cls._read_own(source)
        if hf_tokenizer is None:
            return text
        return with_hf_tokenizer(text, hf_tokenizer, spec.vocab_size)

    @classmethod
    def _read_own(cls, source: Path) -> tuple[TextModel, ModelSpec]:
        if is_artifact(source):
            artifact = Artifact.open(source)
            text = cls(
                model_name(Path(artifact.manifest.source.name)),
                artifact.spec.architecture,
                artifact.tokenizer(),
                artifact.special_tokens,
                artifact.chat_template,
            )
            return text, artifact.spec
        with open_source(source) as model:
            text = cls(
                model_name(source),
                model.spec.architecture,
                model.tokenizer(),
                model.special_tokens(),
                model.chat_template(),
            )
            return text, model.spec

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a prompt; empty where there is none."""
        bos = self.special_tokens.bos
        return "" if bos is None else self._text(bos)

    @property
    def eos_token(self) -> str:
        """The text of the first token that ends an answer."""
        return self._text(self.special_tokens.eos[0])

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text. Raises InvalidInputError where the tokenizer fails on it."""
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Its regular expressions give up on some long texts, by a panic that is no Exception.
        except BaseException as error:
            raise InvalidInputError(
                f"a text of {len(text)} characters cannot be tokenized: {error}", param="messages"
            ) from error

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a rendered prompt: special tokens are recognised, and `bos` comes once.

        Raises as encode does.
        """
        has_bos = bool(self.bos_token) and text.startswith(self.bos_token)
        ids = self.encode(text, add_special_tokens=not has_bos)
        bos = self.special_tokens.bos
        if self.special_tokens.add_bos and bos is not None and ids[:1] != [bos]:
            # Some tokenizers leave it to whoever makes the prompt.
            ids.insert(0, bos)
        return ids

    def _text(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id) or ""
