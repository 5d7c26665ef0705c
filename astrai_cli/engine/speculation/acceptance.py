"""How often proposed tokens turn out right."""

from __future__ import annotations

# What an observation counts for once another one has been made.
_KEPT = 0.85
_PRIOR_WEIGHT = 1.0
_FIRST_GUESS = 0.5
# A rate of 1 would mean that drafts cannot be too long.
_MAX_RATE = 0.98


class Rate:
    """A running share of right tokens, among those up to and with a draft's first wrong one.

    So it is how often a token is right behind right ones.
    """

    def __init__(self, prior: Rate | None = None) -> None:
        """prior: what to go by while little has been seen."""
        self._prior = prior
        self._right = 0.0
        self._seen = 0.0

    @property
    def value(self) -> float:
        guess = _FIRST_GUESS if self._prior is None else self._prior.value
        mean = (guess * _PRIOR_WEIGHT + self._right) / (_PRIOR_WEIGHT + self._seen)
        return min(mean, _MAX_RATE)

    def record(self, n_proposed: int, n_accepted: int) -> None:
        self._right = self._right * _KEPT + n_accepted
        self._seen = self._seen * _KEPT + min(n_accepted + 1, n_proposed)


class Rates:
    """A rate for each confidence that a proposer tells."""

    def __init__(self, priors: Rates | None = None) -> None:
        self._priors = priors
        self._rates: dict[int, Rate] = {}

    def __getitem__(self, confidence: int) -> Rate:
        rate = self._rates.get(confidence)
        if rate is None:
            prior = None if self._priors is None else self._priors[confidence]
            rate = self._rates[confidence] = Rate(prior)
        return rate
