"""The part of a model that deals in text: its tokenizer, special tokens and chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from astrai_cli.artifact import Artifact, is_artifact
from astrai_cli.models.source import model_name, open_source
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
    def read(cls, source: Path) -> TextModel:
        """From an artifact folder or a model. Raises ArtifactError, ModelFileError."""
        if is_artifact(source):
            artifact = Artifact.open(source)
            return cls(
                model_name(Path(artifact.manifest.source.name)),
                artifact.spec.architecture,
                artifact.tokenizer(),
                artifact.special_tokens,
                artifact.chat_template,
            )
        with open_source(source) as model:
            return cls(
                model_name(source),
                model.spec.architecture,
                model.tokenizer(),
                model.special_tokens(),
                model.chat_template(),
            )

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a prompt; empty where there is none."""
        bos = self.special_tokens.bos
        return "" if bos is None else self._text(bos)

    @property
    def eos_token(self) -> str:
        """The text of the first token that ends an answer."""
        return self._text(self.special_tokens.eos[0])

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a rendered prompt: special tokens are recognised, and `bos` comes once."""
        has_bos = bool(self.bos_token) and text.startswith(self.bos_token)
        ids = list(self.tokenizer.encode(text, add_special_tokens=not has_bos).ids)
        bos = self.special_tokens.bos
        if self.special_tokens.add_bos and bos is not None and ids[:1] != [bos]:
            # Some tokenizers leave it to whoever makes the prompt.
            ids.insert(0, bos)
        return ids

    def _text(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id) or ""
