"""Drafts: several tokens of an answer checked in one step, without changing the answer.

A *proposer* guesses how an answer goes on. The step that runs the answer's last token
runs the guessed ones behind it, with a row of logits for each. From each row the token
is drawn that would be drawn without a draft: with the request's own sampling, seed and
index. As long as it is the one that was guessed, the next row counts too.

That is exact speculative sampling (Leviathan et al. 2023) for a proposer that guesses
one token: a guess x is accepted with its probability p(x), and the token drawn in its
place otherwise has the distribution p without x, renormalised. Because draws depend on
logits, seed and index alone, even the same seed gives the same answer.
"""

from astrai_cli.engine.speculation.adaptive import AdaptiveDrafts
from astrai_cli.engine.speculation.block import BlockProposer
from astrai_cli.engine.speculation.ngram import NGramProposer
from astrai_cli.engine.speculation.policy import FullDrafts
from astrai_cli.engine.speculation.proposer import Proposal, Proposer
from astrai_cli.engine.speculation.sources import make_proposer
from astrai_cli.engine.speculation.speculator import Speculator

__all__ = [
    "AdaptiveDrafts",
    "BlockProposer",
    "FullDrafts",
    "NGramProposer",
    "Proposal",
    "Proposer",
    "Speculator",
    "make_proposer",
]
