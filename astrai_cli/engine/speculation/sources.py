"""Where drafts come from, by the options."""

from __future__ import annotations

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.speculation.block import BlockProposer
from astrai_cli.engine.speculation.ngram import NGramProposer
from astrai_cli.engine.speculation.proposer import Proposer
from astrai_cli.errors import InvalidInputError
from backends.base import Executor


def make_proposer(limits: LimitsConfig, executor: Executor, cache: KVCache) -> Proposer | None:
    """The proposer that `limits` ask for. Raises InvalidInputError for one that cannot be."""
    if limits.dflash and limits.speculate != "none":
        raise InvalidInputError(
            f"dflash is on and speculate is {limits.speculate!r}: guesses have one source",
            param="dflash",
        )
    if limits.dflash:
        return BlockProposer(executor, cache, limits.dflash_n_draft)
    return NGramProposer(limits.ngram_n_draft) if limits.speculate == "ngram" else None
