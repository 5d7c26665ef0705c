"""Log probabilities in the shapes of OpenAI's reference."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from astrai_cli.engine.detokenize import TokenBytes
from astrai_cli.engine.request import TokenLogprob


def logprobs_object(
    tokens: Iterable[TokenLogprob], token_bytes: TokenBytes
) -> dict[str, list[dict[str, Any]] | None]:
    """The `logprobs` of a choice: an entry for each generated token but one that ended it.

    Bytes are the token's own, which may be a part of a character; special tokens are
    told by their names.
    """
    content = [
        {
            **_entry(token.token_id, token.logprob, token_bytes),
            "top_logprobs": [_entry(*each, token_bytes) for each in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    raw = token_bytes.named(token_id)
    return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """The `logprobs` of a choice of a completion: lists with an entry for each generated token.

    Tokens that are no whole characters are told as `bytes:` and their escapes, so that two
    of them never have one name.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_chars = 0

    def add(self, tokens: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        """Of the choice's next tokens. text_offset: characters of the text before each."""
        entries: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        for token in tokens:
            name = self._name(token.token_id)
            top = {self._name(token_id): logprob for token_id, logprob in token.top}
            entries["tokens"].append(name)
            entries["token_logprobs"].append(token.logprob)
            entries["top_logprobs"].append({**top, name: token.logprob})
            entries["text_offset"].append(self._place(self._token_bytes[token.token_id]))
        return entries

    def _place(self, raw: bytes) -> int:
        """Where the text of a next token begins."""
        cut_off, _ = self._decoder.getstate()
        goes_on = raw[:1] == b"" or 0x80 <= raw[0] < 0xC0
        place = self._n_chars + bool(cut_off and not goes_on)
        self._n_chars += len(self._decoder.decode(raw))
        return place

    def _name(self, token_id: int) -> str:
        raw = self._token_bytes.named(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
