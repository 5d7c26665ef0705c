"""The options of drafts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astrai_cli.config.base import Group

MAX_DRAFT_TOKENS = 64


class Speculation(Group):
    """How several tokens of an answer are checked in one step; answers stay the same."""

    speculate: Literal["none", "ngram"] = Field(
        "none",
        description="Where guesses of an answer's next tokens come from, which one step checks "
        "together: ngram takes them from what its prompt and the answer said before.",
    )
    ngram_n_draft: int = Field(
        8,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="Most tokens that ngram guesses at once; fewer where more do not pay.",
    )
    adaptive_drafts: bool = Field(
        True,
        description="Guess fewer tokens, or none, where checking them does not pay by the times "
        "that were measured; otherwise always as many as there may be.",
    )
