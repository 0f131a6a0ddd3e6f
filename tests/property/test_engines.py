"""Modelled engines under random work (`yards.py`), by all combinations of rules and tiers."""

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from kv.rules import PLAIN, RANKED, Gaps, KvRules, Queue
from tests.property.yards import Yards

RULES: Final = (
    RANKED,
    PLAIN,
    KvRules(queue=Queue.RANK),
    KvRules(queue=Queue.RANK, gaps=Gaps.TTL),
    replace(RANKED, demotion=False),
    replace(RANKED, queue=Queue.ARRIVAL),
    replace(RANKED, queue=Queue.ARRIVAL, demotion=False),
)

LEAST: Final = {
    "insert": 700, "admit": 3_000, "gap": 2_000, "turn": 3_000, "evict": 1_500, "offload": 300,
    "reload": 150, "migrate": 600, "retract": 80, "rerank": 400, "leave": 120, "sync": 400,
    "tick": 15_000,
}  # fmt: skip
"""Times that each transition is taken in the quick part."""


def played(seeds: range, steps: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        rules = RULES[seed % len(RULES)] if seed % 2 else RANKED
        yards = Yards(seed=seed, rules=rules, has_host_tier=seed % 3 != 0)
        yards.play(steps)
        total.update(yards.counts)
    return total


def test_pages_add_up_nobody_is_passed_over_and_every_turn_ends() -> None:
    counts = played(range(64), 600)
    assert {name: n for name, n in LEAST.items() if counts[name] < n} == {}, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_ticks_break_nothing_either() -> None:
    counts = played(range(1_000, 1_150), 1_000)
    assert counts["tick"] >= 100_000, counts
