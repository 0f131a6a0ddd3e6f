"""Simulated nodes: the ledger and the ladder under a demand, and what others do with it."""

from dataclasses import replace
from random import Random

from sandboxes.core.admission import Rules
from sandboxes.core.ladder import Action, Pressed, Resident, Rung, Tools
from sandboxes.core.names import GIB
from simulation.sandboxes.baselines import declared_rule, oss_rule, run_slots
from simulation.sandboxes.demand import MB, MemoryTrace
from simulation.sandboxes.node import NodeSetting, SimulatedNode, too_early
from simulation.sandboxes.tasks import ManyTemplates, OneTemplate, Pages, factors_of
from tests.unit.sandboxes.core.made import key, resident

PAGES = Pages(base_bytes=100 * MB, shared_share=0.5, overhead_bytes=5 * MB, ceiling_bytes=GIB)


class Steady:
    """Every sandbox holds the same for a minute, with a tool in its second half."""

    def __init__(self, rss_mb: int = 200, seconds: int = 60) -> None:
        idle = tuple(second < seconds // 2 for second in range(seconds))
        turns = tuple(second // 6 for second in range(seconds))
        self.trace = MemoryTrace((rss_mb * MB,) * seconds, (0.1,) * seconds, turns, idle)

    def draw(self, chance: Random) -> MemoryTrace:
        return self.trace


def setting(**changes: object) -> NodeSetting:
    made = NodeSetting(
        20_000 * MB, 100.0, Rules(is_cpu_admitted=False, ramp_share=0.5), 4, 5, Tools()
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def node(rss_mb: int = 200, **changes: object) -> SimulatedNode:
    return SimulatedNode(setting(**changes), OneTemplate(Steady(rss_mb), PAGES), 1)


def test_a_node_fills_by_use_and_never_overflows_on_steady_demand() -> None:
    tally = node().run(600, 400)
    assert tally.overflow_s == 0
    # 150 MB private and 5 overhead: 116 fit at the packing limit, 21 by their ceilings of 1 GiB.
    assert 90 < tally.sandbox_s / tally.seconds <= 116


def test_shared_pages_are_in_memory_once() -> None:
    tally = node().run(300, 200)
    assert tally.shared_byte_s == 50 * MB * tally.seconds
    assert tally.mapped_byte_s == 50 * MB * tally.sandbox_s


def test_cpu_binds_where_cores_are_few() -> None:
    narrow = node(cores=4.0, rules=Rules()).run(300, 200)
    assert narrow.refused.most_common(1)[0][0] == "cpu"
    assert narrow.sandbox_s / narrow.seconds < 40


def test_a_storm_climbs_every_rung_and_kills_nobody_too_early() -> None:
    tools = Tools(swap_free_bytes=500 * MB, disk_free_bytes=500 * MB)
    simulated = node(is_ladder_on=True, tools=tools)
    simulated.run(330, 0)
    simulated.ledger.pages.other_bytes = 14_000 * MB
    tally = simulated.run(20, 0)
    assert {"page_out", "evict", "kill"} <= set(tally.rungs)
    assert not simulated.ledger.gate.is_open
    assert tally.early_kills == 0


def test_a_kill_that_came_too_early_is_counted() -> None:
    two: tuple[Resident, ...] = (resident(1), resident(2))
    pressed = Pressed(100 * MB, True, two, Tools(disk_free_bytes=GIB))
    kill = Action(Rung.KILL, key(2), 205 << 20)
    assert too_early(pressed, [kill]) == 1
    assert too_early(replace(pressed, tools=Tools()), [kill]) == 0


def test_templates_differ_in_their_base_and_in_nothing_else() -> None:
    factors = factors_of(8, 0.5, 3)
    assert len(set(factors)) == 8
    source = ManyTemplates(Steady(), PAGES, factors)
    chance = Random(1)
    tasks = [source.draw(chance) for _ in range(200)]
    assert len({task.spec.template for task in tasks}) == 8
    for task in tasks:
        factor = factors[int(task.spec.template[3:])]
        assert task.spec.shared_bytes == task.private_of_base == round(0.5 * factor * 100 * MB)
        assert task.trace.rss_bytes[0] == max(8 * MB, 200 * MB + round((factor - 1) * 100 * MB))


def test_the_declared_rule_takes_as_many_as_ceilings_fit() -> None:
    tally = run_slots(declared_rule(20 * GIB, GIB, 0), Steady(), 20 * GIB, 200, 1)
    assert (tally.sandboxes, tally.killed_by_ceiling, tally.overflow_s) == (20.0, 0, 0)


def test_the_open_rule_looks_at_no_memory() -> None:
    tally = run_slots(oss_rule(GIB, 0), Steady(), 20 * GIB, 300, 1)
    assert tally.sandboxes < 200
    assert tally.overflow_s > 0


def test_a_life_above_its_declared_ceiling_is_killed() -> None:
    tally = run_slots(declared_rule(20 * GIB, GIB, 0), Steady(1_100), 20 * GIB, 10, 1)
    assert tally.killed_by_ceiling > 0
    assert tally.rollouts_ended == 0
