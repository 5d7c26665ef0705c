"""The options of drafts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astrai_cli.config.base import INT32_MAX, Group, UserPath

MAX_DRAFT_TOKENS = 64


class DraftModel(Group):
    """The option of the draft's own model, at export and where a backend runs model files."""

    draft_gguf: UserPath | None = Field(
        None,
        description="GGUF file of a block draft (DFlash) of the model, for dflash. An artifact has "
        "the draft it was exported with, and takes no other.",
    )


class DraftBounds(Group):
    """What an export's draft is built for."""

    max_draft_owners: int = Field(
        8,
        ge=1,
        le=256,
        description="Answers that an exported block draft guesses for together; where more run, it "
        "does so several times in a step.",
    )
    draft_max_cells: int | None = Field(
        None,
        ge=2,
        le=INT32_MAX,
        description="Cells of the cache that an exported block draft is for: with dflash, serving "
        "never has more. At most max_cells, and as many as the model has when left out.",
    )


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
    dflash: bool = Field(
        False,
        description="Take guesses from the block draft that the model was exported with.",
    )
    dflash_n_draft: int = Field(
        0,
        ge=0,
        le=MAX_DRAFT_TOKENS * 4,
        description="Tokens that the block draft guesses at once, with a block of one more; 0: as "
        "many as it was exported for, and never more.",
    )
    adaptive_drafts: bool = Field(
        True,
        description="Guess fewer tokens, or none, where checking them does not pay by the times "
        "that were measured; otherwise always as many as there may be.",
    )
