"""Slots of an engine that several tenants use: by time and weight, whatever their ranks are."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest

from domain.ids import OrganizationId
from domain.plan import TenantShare
from kv.ranks import RankClass, compose
from tests.support.engines import request
from tests.unit.workers.rollout.embedded.cores import Answers, build, drain, submit
from workers.rollout.embedded.core import Core

NORMAL = compose(RankClass.NORMAL, 1, 0)
CRITICAL = compose(RankClass.CRITICAL, 1, 0)

WEIGHTS = {"one": 1, "two": 2, "five": 5}
NAMED = tuple(TenantShare(OrganizationId(name), WEIGHTS[name]) for name in ("two", "five"))
"""Whoever is not named weighs 1."""

LONGEST = 20
"""Tokens of the longest turn, each a decode step."""

WINDOW = 10 * LONGEST
TOLERANCE = 0.05
"""Of each tenant's own share, not of the whole."""

Steps = list[Counter[str]]
"""By decode step: slots of each tenant."""


def ask(core: Core, tenant: str, number: int, rank: int, answers: Answers, **fields: int) -> str:
    """One turn of a rollout of its own."""
    name = f"{tenant}{number}"
    one = request(name, (number % 10, 1, 2), request_id=name, rank=rank, **fields)
    submit(core, replace(one, tenant=tenant), answers)
    return name


def running(core: Core) -> Counter[str]:
    return Counter(one.ticket.request.tenant for one in core.rows.running)


def test_free_slots_go_to_two_tenants_in_turn_though_one_ranks_all_of_its_turns_better() -> None:
    core = build(slots=4, pages=60)
    answers: Answers = {}
    for number in range(8):
        ask(core, "a", number, CRITICAL + number, answers)
    for number in range(8):
        ask(core, "b", number, NORMAL + number, answers)
    core.step()
    assert running(core) == {"a": 2, "b": 2}
    drain(core)
    assert len(answers) == 16


def test_a_tenant_that_comes_later_gets_the_next_slot_and_nothing_for_its_absence() -> None:
    steps = 0
    core = build(slots=2, pages=60, clock=lambda: float(steps))
    answers: Answers = {}
    for number in range(9):
        ask(core, "a", number, CRITICAL + number, answers, max_tokens=4 + number % 3)
    for _ in range(5):
        core.step()
        steps += 1
    for number in range(9):
        ask(core, "b", number, NORMAL + number, answers, max_tokens=4 + number % 3)
    got = Counter[str]()
    while len(answers) < 12:
        core.step()
        steps += 1
        got += running(core)
    assert abs(got["a"] - got["b"]) <= 12, got
    drain(core)


def test_a_better_turn_takes_a_slot_of_its_own_tenant_though_another_tenant_is_owed_the_next() -> (
    None
):
    core = build(slots=2, pages=60)
    answers: Answers = {}
    for number in range(2):
        ask(core, "b", number, NORMAL + number, answers, max_tokens=30)
    core.step()
    ask(core, "a", 0, CRITICAL, answers)
    ask(core, "b", 7, CRITICAL, answers)
    core.step()
    assert [one.ticket.request.request_id for one in core.rows.running] == ["b0", "b7"]
    assert "a0" in core.waiting, "no running turn is interrupted for another tenant"
    drain(core)
    assert list(answers).index("a0") < list(answers).index("b1"), "the next slot was a's"


class Shared:
    """Tenants who all keep turns waiting, the one that weighs least with the best ranks."""

    def __init__(self, step_s: float, slots: int = 8, away: Collection[int] = ()) -> None:
        """`away`: decode steps in which one tenant asks for nothing."""
        self.away = away
        self.now = self.asked = 0
        self.core = build(slots, 20 * slots, lambda: self.now * step_s, tenants=NAMED)
        self.answers: Answers = {}
        self.chance = Random(0)

    def play(self, steps: int) -> Steps:
        used: Steps = []
        for _ in range(steps):
            self._ask()
            self.core.step()
            ended = Counter(name.rstrip("0123456789") for name in self.answers)
            used.append(running(self.core) + ended)
            for one in self.answers.values():
                self.core.release(one.rollout_id)
            self.answers.clear()
            self.now += 1
        return used

    def _ask(self) -> None:
        waiting = Counter(one.request.tenant for one in self.core.waiting.values())
        for name in WEIGHTS:
            if name == "two" and self.now in self.away:
                continue
            for _ in range(self.core.slots - waiting[name]):
                self.asked += 1
                rank = self.asked + (CRITICAL if name == "one" else NORMAL)
                length = 1 + self.chance.randrange(LONGEST)
                ask(self.core, name, self.asked, rank, self.answers, max_tokens=length)


def worst_error(used: Steps) -> float:
    """Of the share that any tenant has in any window, against its share by weight."""
    worst, windows = 0.0, range(0, len(used) - WINDOW + 1, LONGEST // 2)
    assert len(windows) > 10
    for begin in windows:
        got = sum(used[begin : begin + WINDOW], Counter[str]())
        fair = got.total() / sum(WEIGHTS.values())
        worst = max(worst, *(abs(got[name] / (fair * WEIGHTS[name]) - 1) for name in WEIGHTS))
    return worst


@pytest.mark.parametrize(("step_s", "slots"), [(0.02, 8), (5.0, 8), (0.2, 12)])
def test_slot_time_is_shared_by_weight_in_every_window_of_ten_longest_turns(
    step_s: float, slots: int
) -> None:
    used = Shared(step_s, slots).play(500)
    # Nine turns at most enter an engine in one step: each with room of its own beside it.
    assert {one.total() for one in used[1:]} == {slots}
    assert worst_error(used) <= TOLERANCE


def test_a_tenant_that_was_away_gets_its_share_again_and_no_credit() -> None:
    away = range(200, 500)
    used = Shared(0.2, away=away).play(away.stop + 320)
    assert {one.total() for one in used} == {8}, "no slot is idle while anybody waits"
    gone = sum(used[away.start + 100 : away.stop], Counter[str]())
    assert gone["two"] == 0
    assert gone["five"] / gone["one"] == pytest.approx(5, rel=TOLERANCE)
    back = sum(used[away.stop : away.stop + WINDOW], Counter[str]())
    assert back["two"] / back.total() <= 2 / 8 * (1 + TOLERANCE)
    # Turns that ran when it came back were not interrupted.
    assert worst_error(used[away.stop + LONGEST :]) <= TOLERANCE
