"""Log probabilities in the shape of OpenAI's reference."""

from __future__ import annotations

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
