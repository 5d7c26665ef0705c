"""Drafts that do not pay end soon, those that do are long; on a clock that is only counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from astrai_cli.engine.speculation.adaptive import AdaptiveDrafts
from astrai_cli.engine.speculation.policy import FullDrafts, Offer
from astrai_cli.engine.speculation.times import StepTimes

Clock = Callable[[int], float]


def bound_by_memory(n_rows: int) -> float:
    """A second row costs a lot, the next few little: as on a processor with small tiles."""
    return 1.0 if n_rows == 1 else 1.35 + 0.08 * (n_rows - 2)


def bound_by_arithmetic(n_rows: int) -> float:
    return float(n_rows)


def simulate(
    clock: Clock,
    right: Sequence[float],
    n_answers: int = 1,
    *,
    noise: float = 0.1,
    policy: AdaptiveDrafts | None = None,
    first_id: int = 0,
) -> float:
    """How much faster than without drafts answers are, whose next tokens are guessed so surely."""
    policy = policy or AdaptiveDrafts()
    chance = random.Random(0)
    policy.record([], [], 32, clock(32))
    said = [0] * n_answers
    seconds = 0.0
    while min(said) < len(right):
        offers = [Offer(first_id + task, 8) for task in range(n_answers)]
        counts = policy.choose(offers, n_answers, room=1000)
        drafts = []
        for task, n in enumerate(counts):
            accepted = 0
            while accepted < n and chance.random() < right[min(said[task], len(right) - 1)]:
                accepted += 1
            said[task] += 1 + accepted
            if n:
                drafts.append((Offer(first_id + task, n), accepted))
        step = clock(n_answers + sum(counts))
        seconds += step
        ids = [offer.task_id for offer in offers]
        policy.record(ids, drafts, n_answers, step * chance.uniform(1 - noise, 1 + noise))
    return sum(said) / n_answers * clock(n_answers) / seconds


@pytest.mark.parametrize("n_answers", [1, 8])
@pytest.mark.parametrize("clock", [bound_by_memory, bound_by_arithmetic])
def test_drafts_that_are_always_wrong_cost_little(clock: Clock, n_answers: int) -> None:
    assert simulate(clock, [0.0] * 300, n_answers) > 0.95


def test_even_where_times_say_nothing() -> None:
    assert simulate(bound_by_memory, [0.0] * 300, noise=0.5) > 0.95


def test_drafts_that_are_mostly_right_pay() -> None:
    assert simulate(bound_by_memory, [0.95] * 300) > 2.0


def test_in_a_step_bound_by_arithmetic_not_even_the_best_pay() -> None:
    assert simulate(bound_by_arithmetic, [0.97] * 300) > 0.97


def test_an_answer_that_begins_to_repeat_itself_is_noticed() -> None:
    free = simulate(bound_by_memory, [0.05] * 400)
    assert free > 0.96
    assert simulate(bound_by_memory, [0.05] * 400 + [0.97] * 400) > 1.3


def test_what_one_request_learnt_spares_the_next_ones_trials() -> None:
    policy = AdaptiveDrafts()
    simulate(bound_by_memory, [0.0] * 200, policy=policy)
    policy.forget(0)
    assert simulate(bound_by_memory, [0.0] * 40, policy=policy, first_id=1) > 0.95
    assert list(policy._accounts) == [1]


def test_full_drafts_take_what_room_there_is() -> None:
    assert FullDrafts().choose([Offer(0, 5), Offer(1, 5), Offer(2, 5)], 3, room=7) == [5, 2, 0]


def test_a_machine_that_becomes_slow_changes_no_factor() -> None:
    times = StepTimes()
    for pace in (1.0, 7.0):
        for _ in range(40):
            times.record(1, pace)
            times.record(4, 2 * pace)
    one, two, four, five = times.at([1, 2, 4, 5])  # type: ignore[arg-type] # a list will do
    assert one == pytest.approx(7.0, rel=0.05)
    assert four / one == pytest.approx(2.0, rel=0.05)
    assert one < two < four == five
