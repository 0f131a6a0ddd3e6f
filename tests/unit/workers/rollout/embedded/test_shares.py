"""Slots of an engine that several tenants use: by time, whatever their ranks are."""

from collections import Counter
from dataclasses import replace

from kv.ranks import RankClass, compose
from tests.support.engines import request
from tests.unit.workers.rollout.embedded.cores import Answers, build, drain, submit
from workers.rollout.embedded.core import Core

NORMAL = compose(RankClass.NORMAL, 1, 0)
CRITICAL = compose(RankClass.CRITICAL, 1, 0)


def ask(core: Core, tenant: str, number: int, rank: int, answers: Answers, **fields: int) -> str:
    """One turn of a rollout of its own."""
    name = f"{tenant}{number}"
    one = request(name, (number, 1, 2), request_id=name, rank=float(rank), **fields)
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
