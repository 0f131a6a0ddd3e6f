"""Slots and slices between tenants under random weights, turns and absences, with mutants that must die."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from domain.ids import JobId, OrganizationId
from kv import shares
from kv.shares import Ledger
from scheduler.core.time_slices import Rotation, Switch
from tests.simulation.tenants.shared_engines import SharedEngines

EXAMPLES = 60
GRANTS_LEAST = 40_000
"""Slots handed out over all examples."""

WEIGHTS = (1.0, 2.0, 3.0, 5.0)
LONGEST_TURN_S = 20.0
WINDOW_S = 10 * LONGEST_TURN_S

DETERMINED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One drawn world: the first tenant is bursty."""

    weights: tuple[float, ...]
    slots: int
    seed: int
    away: tuple[float, float]

    def world(self) -> SharedEngines:
        names = [OrganizationId(f"org_{index}") for index in range(len(self.weights))]
        weights = dict(zip(names, self.weights, strict=True))
        away = {names[0]: [self.away]}
        return SharedEngines(weights, self.slots, Random(self.seed), LONGEST_TURN_S, away=away)


CASES = st.builds(
    Case,
    weights=st.lists(st.sampled_from(WEIGHTS), min_size=2, max_size=4).map(tuple),
    slots=st.sampled_from([12, 20, 40]),
    seed=st.integers(0, 2**16),
    away=st.tuples(st.floats(1.0, 100.0), st.floats(101.0, 200.0)),
)


def run_cases(check: Callable[[Case], int]) -> int:
    """Check all drawn cases; the sum of what they say."""
    total = 0

    @DETERMINED
    @given(case=CASES)
    def run(case: Case) -> None:
        nonlocal total
        total += check(case)

    run()
    return total


def shares_hold(case: Case) -> int:
    """No slot is idle, and the window after the absence is divided by weight; grants seen."""
    world = case.world()
    world.run(200.0 + WINDOW_S + LONGEST_TURN_S)
    assert world.idle_s == 0.0, "a slot is idle while somebody waits"
    begin = case.away[1]
    seconds = world.seconds(begin, begin + WINDOW_S)
    total = sum(seconds.values()) / sum(case.weights)
    for tenant, weight in world.weights.items():
        assert seconds[tenant] / (total * weight) == pytest.approx(1.0, abs=0.05), "unfair share"
    return len(world.used)


def nobody_starves(case: Case) -> int:
    """Between two slots of a waiting tenant the others get a bounded number of them."""
    world = case.world()
    world.run(150.0)
    waited = dict.fromkeys(world.weights, 0)
    bound = 4 * case.slots * sum(case.weights) / min(case.weights)
    for used in world.used:
        for tenant in waited:
            is_away = case.away[0] <= used.began < case.away[1] and tenant == "org_0"
            waited[tenant] = 0 if tenant == used.tenant or is_away else waited[tenant] + 1
        assert max(waited.values()) <= bound, "a tenant starves"
    return len(world.used)


def test_shares_hold_whatever_the_weights_and_however_a_tenant_comes_and_goes() -> None:
    assert run_cases(shares_hold) >= GRANTS_LEAST


def test_no_tenant_starves() -> None:
    assert run_cases(nobody_starves) >= GRANTS_LEAST // 4


def test_the_mutant_that_earns_credit_by_being_away_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_lift(self: Ledger[str], party: str, now: float) -> None:
        self.account(party).is_waiting = True

    monkeypatch.setattr(Ledger, "wait", without_lift)
    with pytest.raises(AssertionError, match="unfair share"):
        run_cases(shares_hold)


def test_the_mutant_that_compares_ranks_of_tenants_starves_somebody_and_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_by_name(
        ledger: Ledger[OrganizationId], waiting: list[shares.WaitingTurn], now: float
    ) -> shares.WaitingTurn | None:
        return min(waiting, key=lambda turn: turn.turn_id, default=None)

    target = "tests.simulation.tenants.shared_engines.next_turn"
    monkeypatch.setattr(target, first_by_name)
    with pytest.raises(AssertionError, match="starves"):
        run_cases(nobody_starves)


def test_the_mutant_that_serves_who_got_most_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(self: Ledger[str], party: str, now: float, held: float | None = None) -> float:
        return -self.account(party).attained(now)

    monkeypatch.setattr(Ledger, "due", backwards)
    with pytest.raises(AssertionError):
        run_cases(nobody_starves)


@DETERMINED
@given(
    weights=st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.floats(0.1, 30.0)), min_size=30),
)
def test_every_waiting_job_gets_its_slice_within_one_round_of_slices(
    weights: list[float], steps: list[tuple[int, bool, float]]
) -> None:
    jobs = [JobId(f"job_{index}") for index in range(len(weights))]
    turns, now = Rotation(Switch(10.0, 1.0, 1.0, 5.0), LONGEST_TURN_S), 0.0
    for job, weight in zip(jobs, weights, strict=True):
        turns.join(job, weight)
    since: dict[JobId, int] = {}
    for index, waits, seconds in steps:
        job = jobs[index % len(jobs)]
        (turns.wait if waits else turns.rest)(job)
        waiting = turns.waiting()
        since = {one: since.get(one, 0) for one in waiting}
        now += seconds
        chosen = turns.next_job()
        if chosen is None or not turns.is_over(now):
            continue
        turns.switch_to(chosen, now)
        assert turns.current is not None
        assert turns.current.length_s >= turns.switch.swap_s + LONGEST_TURN_S
        since = {one: 0 if one == chosen else since[one] + 1 for one in waiting}
        assert max(since.values()) < len(jobs), "a job waits for more than a round"
