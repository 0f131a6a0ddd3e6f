"""Who keeps pages, with each switch that the order of claimants depends on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pytest

from domain.plan import Mechanism, Scheduling
from kv.eviction import victims
from kv.ranks import RankClass, compose
from kv.residency import Choice, by_rank, choose, order_of
from kv.rules import RANKED, Eviction, KvRules, rules_of

WITHOUT_DEMOTION: Final = rules_of(Scheduling(off=(Mechanism.DEMOTION,)))
WITHOUT_PRIORITY: Final = rules_of(Scheduling(off=(Mechanism.PRIORITY,)))
NEITHER: Final = replace(WITHOUT_DEMOTION, queue=WITHOUT_PRIORITY.queue)


@dataclass(slots=True)
class One:
    """A claimant; `key` is its name and its place in its class."""

    key: int
    rank_class: RankClass = RankClass.CRITICAL
    pages: int = 10
    last_used: float = 0.0
    is_waiting: bool = False
    arrival: int = 0
    is_unused: bool = False
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        """By class, then by key."""
        self.rank = compose(self.rank_class, self.key, 0)


def split(rules: KvRules, claimants: Sequence[One], room: int, slots: int = 8) -> Choice[One]:
    """Everybody claims what it holds, a turn without pages ten."""
    line = sorted(claimants, key=order_of(rules))
    return choose(line, lambda one: one.pages or 10, lambda _: None, room, slots)


def keys(found: Sequence[One]) -> list[int]:
    return [one.key for one in found]


def high_demand() -> list[One]:
    """Three high rollouts of ten pages each; the best-ranked was used least recently."""
    return [
        One(1, RankClass.PROMOTED, last_used=1.0),
        One(2, last_used=2.0),
        One(3, pages=0, is_waiting=True),
    ]


def with_prompt(paid: Sequence[One], one: One) -> int:
    """What it holds, and for the first 100 pages of prompt."""
    return one.pages + (0 if paid else 100)


def test_what_is_shared_is_charged_to_the_first_who_fits() -> None:
    """Two of a group, 100 pages of prompt and one each, beside a room of 50: neither is kept.

    The second must not find the prompt paid for by the first, which is not kept.
    """
    group = [One(1, pages=1), One(2, pages=1)]
    for room, kept in ((50, 0), (101, 1), (102, 2)):
        paid: list[One] = []
        choice = choose(group, partial(with_prompt, paid), paid.append, room, 8)
        assert len(group) - len(choice.low) == len(paid) == kept


def test_with_demotion_the_best_ranked_stay_whole_and_the_last_waits() -> None:
    choice = split(RANKED, high_demand(), room=20)
    assert choice.admitted == []
    assert keys(choice.low) == [3]
    assert choice.blocked is not None
    assert choice.blocked.key == 3


def test_without_demotion_the_turn_runs_and_the_least_recently_used_goes_whatever_its_rank() -> (
    None
):
    choice = split(WITHOUT_DEMOTION, high_demand(), room=20)
    assert keys(choice.admitted) == [3]
    assert keys(choice.low) == [1]


@pytest.mark.parametrize("rules", [RANKED, WITHOUT_DEMOTION], ids=["with", "without"])
def test_while_high_demand_fits_demotion_decides_nothing(rules: KvRules) -> None:
    low = One(9, RankClass.NORMAL, last_used=9.0)
    choice = split(rules, [*high_demand(), low], room=30)
    assert keys(choice.admitted) == [3]
    assert keys(choice.low) == [9]


@pytest.mark.parametrize("rules", [RANKED, WITHOUT_DEMOTION], ids=["with", "without"])
def test_a_low_turn_takes_no_room_from_high_gaps(rules: KvRules) -> None:
    gaps = [One(1, last_used=1.0), One(2, last_used=2.0)]
    late = One(3, RankClass.NORMAL, pages=0, is_waiting=True)
    choice = split(rules, [*gaps, late], room=20)
    assert choice.admitted == []
    assert keys(choice.low) == [3]


def test_without_demotion_low_ones_still_go_by_rank_and_before_any_high_one() -> None:
    gaps = [
        One(1, last_used=1.0),
        One(5, RankClass.NORMAL, last_used=8.0),
        One(6, RankClass.NORMAL, last_used=9.0),
    ]
    late = One(2, pages=0, is_waiting=True)
    choice = split(WITHOUT_DEMOTION, [*gaps, late], room=10)
    assert keys(choice.admitted) == [2]
    assert keys(choice.low) == [6, 5, 1]


def test_without_demotion_promoted_turns_are_still_admitted_before_critical_ones() -> None:
    turns = [
        One(1, pages=0, is_waiting=True),
        One(2, RankClass.PROMOTED, pages=0, is_waiting=True),
    ]
    assert keys(split(WITHOUT_DEMOTION, turns, room=10).admitted) == [2]


def test_without_priority_turns_run_as_they_came_and_gaps_go_by_rank() -> None:
    claimants = [
        One(1, RankClass.PROMOTED, pages=0, is_waiting=True, arrival=7),
        One(2, RankClass.NORMAL, pages=0, is_waiting=True, arrival=6),
        One(3, last_used=1.0),
        One(4, last_used=2.0),
    ]
    assert keys(split(RANKED, claimants, room=40, slots=1).admitted) == [1]
    choice = split(WITHOUT_PRIORITY, claimants, room=30)
    assert keys(choice.admitted) == [2, 1]
    assert keys(choice.low) == [4]
    assert keys(split(NEITHER, claimants, room=30).low) == [3]


def test_ranked_rules_order_by_class_then_pages_then_rank() -> None:
    claimants = [
        One(4, RankClass.NORMAL),
        One(1, pages=0, is_waiting=True),
        One(3, last_used=5.0),
        One(2, is_waiting=True),
        One(5, RankClass.PROMOTED, pages=0, is_waiting=True),
    ]
    assert order_of(RANKED) is by_rank
    assert keys(sorted(claimants, key=by_rank)) == [5, 2, 3, 1, 4]


@pytest.mark.parametrize(
    ("demotes", "expected"), [(True, [8, 6, 5, 2, 1]), (False, [8, 6, 5, 1, 2])]
)
def test_growth_takes_unused_then_low_by_rank_then_high(demotes: bool, expected: list[int]) -> None:
    """The high ones by rank with demotion, by recency without."""
    holders = [
        One(1, last_used=1.0),
        One(2, last_used=2.0),
        One(5, RankClass.NORMAL, last_used=0.0),
        One(6, RankClass.NORMAL, last_used=9.0),
        One(8, RankClass.PROMOTED, last_used=9.0, is_unused=True),
    ]
    assert keys(victims(holders, Eviction.CLASSES, demotes=demotes)) == expected


@pytest.mark.parametrize("demotes", [True, False])
def test_of_two_members_of_a_group_the_worse_one_goes_first(demotes: bool) -> None:
    """Their ranks differ by one, which a float of that size does not tell."""
    better, worse = One(1, RankClass.NORMAL), One(2, RankClass.NORMAL)
    better.rank = compose(RankClass.NORMAL, 7, 3)
    worse.rank = better.rank + 1
    assert keys(victims([better, worse], Eviction.CLASSES, demotes=demotes)) == [2, 1]


def test_without_residency_there_is_nothing_to_demote() -> None:
    assert not rules_of(Scheduling(off=(Mechanism.RESIDENCY,))).demotion
