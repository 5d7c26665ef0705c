"""How many tokens to propose, so that drafts do not make answers slower.

A draft makes a step longer, and its accepted tokens save steps. Both are measured: the
seconds of steps by their number of rows, and how often each request's proposals are
right. The lengths are chosen that give the most tokens a second, all requests of the
step together. Where a step is bound by arithmetic its seconds grow with every row, so
none is chosen.

Estimates can be wrong, and what is not tried is not learnt. So each request has a
balance of seconds: what its drafts saved, less what they cost. A small part of all the
time it runs is added, for trials of what does not seem to pay; with nothing left it
runs without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.speculation.acceptance import Rates
from astrai_cli.engine.speculation.policy import DraftPolicy, Offer
from astrai_cli.engine.speculation.times import StepTimes

# The part of a request's time that trials may cost.
_TRIAL_SHARE = 0.015
# The most seconds that a balance holds, and a new request's, in steps without drafts.
_MAX_BALANCE = 2.0
_FIRST_BALANCE = 0.6
# The least that a draft counts for, in steps without one: what seems free may be mismeasured.
_MIN_COST = 0.2
# What drafts must seem to gain, because both sides are estimates.
_MARGIN = 1.05
# The rate that a trial hopes for.
_HOPE = 0.9


@dataclass(slots=True)
class _Account:
    """A request's rates, and its balance in seconds."""

    rates: Rates
    balance: float


class AdaptiveDrafts(DraftPolicy):
    """Drafts that pay, by what was measured, and trials of others that cost little."""

    def __init__(self) -> None:
        self._steps = StepTimes()
        self._drafting = StepTimes()
        self._rates = Rates()
        self._accounts: dict[int, _Account] = {}

    def choose(self, offers: Sequence[Offer], n_rows: int, room: int) -> list[int]:
        room = min(room, self._measurable(n_rows), sum(offer.n for offer in offers))
        if not room:
            return [0] * len(offers)
        seconds = self._seconds(n_rows, room)
        accounts = [self._account(offer.task_id, seconds[0]) for offer in offers]
        counts = _best_counts(offers, accounts, n_rows, seconds)
        richest = max(range(len(offers)), key=lambda index: accounts[index].balance)
        if not any(counts):
            n = min(room, offers[richest].n)
            affordable = accounts[richest].balance / len(offers)
            counts[richest] = _trial(seconds[: n + 1], n_rows, affordable)
        return counts

    def record_drafting(self, n_drafted: int, seconds: float) -> None:
        self._drafting.record(n_drafted, seconds)

    def record(
        self,
        task_ids: Sequence[int],
        drafts: Sequence[tuple[Offer, int]],
        n_rows: int,
        seconds: float,
    ) -> None:
        n_drafted = sum(offer.n for offer, _ in drafts)
        self._steps.record(n_rows + n_drafted, seconds)
        expected = self._seconds(n_rows, n_drafted)
        plain = float(expected[0])
        for task_id in task_ids:
            self._account(task_id, plain).balance += _TRIAL_SHARE * plain
        for offer, n_accepted in drafts:
            account = self._account(offer.task_id, plain)
            account.rates[offer.confidence].record(offer.n, n_accepted)
            self._rates[offer.confidence].record(offer.n, n_accepted)
            # Every answer waits for the longer step.
            cost = max(float(expected[-1]) - plain, _MIN_COST * plain)
            cost *= len(task_ids) * offer.n / n_drafted
            account.balance += n_accepted * plain - cost
        limit = _MAX_BALANCE * plain
        for task_id in task_ids:
            account = self._account(task_id, plain)
            account.balance = min(max(account.balance, -limit), limit)

    def forget(self, task_id: int) -> None:
        self._accounts.pop(task_id, None)

    def _measurable(self, n_rows: int) -> int:
        """How many rows to add at most, so that what steps take is not guessed altogether."""
        least, most = self._steps.measured
        return max(0, 2 * most - n_rows) if 0 < least <= n_rows else 0

    def _account(self, task_id: int, plain: float) -> _Account:
        account = self._accounts.get(task_id)
        if account is None:
            account = _Account(Rates(self._rates), _FIRST_BALANCE * plain)
            self._accounts[task_id] = account
        return account

    def _seconds(self, n_rows: int, n_drafted: int) -> NDArray[np.float64]:
        """Of steps of n_rows and 0 … n_drafted besides, with the time it takes to propose those."""
        besides = np.arange(n_drafted + 1)
        seconds = self._steps.at(n_rows + besides)
        seconds[1:] += self._drafting.at(besides[1:])
        return seconds


def _best_counts(
    offers: Sequence[Offer],
    accounts: Sequence[_Account],
    n_rows: int,
    seconds: NDArray[np.float64],
) -> list[int]:
    """Those that give the most tokens a second, of requests whose balance is not below 0."""
    gains = [
        account.rates[offer.confidence].value ** np.arange(1, offer.n + 1)
        if account.balance >= 0
        else np.empty(0)
        for offer, account in zip(offers, accounts, strict=True)
    ]
    owners = np.repeat(np.arange(len(offers)), [len(gain) for gain in gains])
    every = np.concatenate(gains)
    order = np.argsort(-every, kind="stable")[: len(seconds) - 1]
    best = _best(n_rows + np.concatenate([[0.0], every[order].cumsum()]), seconds)
    counts: list[int] = np.bincount(owners[order[:best]], minlength=len(offers)).tolist()
    return counts


def _trial(seconds: NDArray[np.float64], n_rows: int, affordable: float) -> int:
    """The length of a draft to try that costs no more seconds than are affordable."""
    if affordable < _MIN_COST * seconds[0]:
        return 0
    hoped = n_rows + np.concatenate([[0.0], (_HOPE ** np.arange(1, len(seconds))).cumsum()])
    return _best(np.where(seconds - seconds[0] <= affordable, hoped, 0.0), seconds)


def _best(tokens: NDArray[np.float64], seconds: NDArray[np.float64]) -> int:
    """The index with the most tokens a second, if those are more than at 0 by the margin."""
    if not seconds[0] > 0:
        return 0
    speeds = tokens / seconds[: len(tokens)]
    best = int(speeds.argmax())
    return best if speeds[best] > _MARGIN * speeds[0] else 0
