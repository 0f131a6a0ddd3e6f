"""A node admits by what is held and reserved; what it refuses comes with its numbers."""

import math
from dataclasses import replace

import pytest

from domain.ids import GroupId
from domain.sandbox import SandboxPurpose
from sandboxes.core.admission import (
    Admitted,
    Ask,
    NodeLoad,
    Refused,
    Resource,
    Rules,
    Why,
    admit,
    room_bytes,
    room_cores,
)
from sandboxes.core.cpu import GroupCpu
from sandboxes.core.gate import PressureGate
from sandboxes.core.ledger import Life, NodeLedger
from sandboxes.core.names import GIB, MIB
from sandboxes.core.pages import NodePages, PageUse
from sandboxes.core.reserve import GroupDemand, pooled_bytes
from tests.unit.sandboxes.core.made import growth, key, spec

RULES = Rules(packing=0.9, z=0.0)


def load(committed: int = 0, cores_used: float = 0.0, gate: PressureGate | None = None) -> NodeLoad:
    cpu = (GroupCpu(1, cores_used, 0.0),)
    return NodeLoad(1_000, 10.0, committed, (), cpu, gate or PressureGate())


def ask(members: int = 2, expected: float = 50.0, cores: float = 0.5, template: int = 20) -> Ask:
    demand = GroupDemand(members, 0.0, growth(expected))
    return Ask(demand, GroupCpu(members, cores, 0.0), 5, template)


def test_a_group_is_admitted_up_to_the_packing_limit_exactly() -> None:
    # 2 x 50 expected + 2 x 5 overhead + 20 shared = 130 of 900
    assert admit(load(770), ask(), RULES) == Admitted(0.0)
    refused = admit(load(771), ask(), RULES)
    assert refused == Refused(Why.NO_ROOM, Resource.MEMORY, 901, 900)
    assert isinstance(refused, Refused)
    assert refused.missing == 1


def test_a_template_that_is_there_costs_nothing_again() -> None:
    assert isinstance(admit(load(790), ask(template=0), RULES), Admitted)


def test_declared_ceilings_are_not_the_currency() -> None:
    assert growth(50.0).ceiling_bytes > 1_000
    assert isinstance(admit(load(), ask(), RULES), Admitted)


def test_cpu_binds_when_it_is_admitted_and_not_when_it_is_off() -> None:
    busy = load(cores_used=8.5)
    assert admit(busy, ask(), RULES) == Refused(Why.NO_ROOM, Resource.CPU, 9.5, 9.0)
    assert isinstance(admit(busy, ask(), Rules(z=0.0, is_cpu_admitted=False)), Admitted)


def test_what_no_node_of_this_size_holds_says_so() -> None:
    assert admit(load(), ask(members=40), RULES) == Refused(
        Why.NEVER_FITS, Resource.MEMORY, 2_220, 900
    )
    wide = admit(load(), ask(cores=5.0), RULES)
    assert isinstance(wide, Refused)
    assert (wide.why, wide.resource) == (Why.NEVER_FITS, Resource.CPU)


def test_the_grading_reserve_is_kept_from_agents_and_given_to_graders() -> None:
    rules = Rules(packing=0.9, z=0.0, grading_reserve_bytes=100)
    refused = admit(load(700), ask(), rules)
    assert isinstance(refused, Refused)
    assert refused.why is Why.GRADING_RESERVE
    grader = Ask(ask().demand, ask().cpu, 5, 20, SandboxPurpose.GRADER)
    assert isinstance(admit(load(700), grader, rules), Admitted)
    assert room_bytes(load(700), rules) == 100


def test_rooms_for_the_leader_are_what_is_left_below_the_limit() -> None:
    assert room_cores(10.0, [GroupCpu(4, 1.0, 0.0)], RULES) == 5.0


def test_pressure_stops_admission_and_half_a_minute_of_calm_resumes_it() -> None:
    gate = PressureGate()
    gate.sample(0.0, 0.05)
    assert admit(load(gate=gate), ask(), RULES) == Refused(
        Why.UNDER_PRESSURE, Resource.PRESSURE, 0.05, 0.02
    )
    gate.sample(10.0, 0.01)
    gate.sample(39.9, 0.01)
    assert not gate.is_open
    gate.sample(40.0, 0.01)
    assert gate.is_open


def test_a_moment_above_two_percent_begins_the_calm_anew() -> None:
    gate = PressureGate()
    gate.sample(0.0, 0.06)
    gate.sample(1.0, 0.0)
    gate.sample(20.0, 0.03)
    gate.sample(21.0, 0.0)
    gate.sample(40.0, 0.0)
    assert not gate.is_open
    gate.sample(51.0, 0.0)
    assert gate.is_open


def test_pressure_between_the_limits_does_not_close_an_open_gate() -> None:
    gate = PressureGate()
    gate.sample(0.0, 0.03)
    assert gate.is_open
    gate.stop()
    assert not gate.is_open


def test_the_reserve_of_one_group_grows_with_its_members_and_of_many_with_the_root() -> None:
    one = pooled_bytes([GroupDemand(16, 1_600.0, growth(100.0, 10.0))], z=3.0)
    many = pooled_bytes([GroupDemand(1, 100.0, growth(100.0, 10.0))] * 16, z=3.0)
    assert one == pytest.approx(3 * 160)
    assert many == pytest.approx(3 * 10 * math.sqrt(16))


def test_what_is_sure_to_come_and_one_group_at_its_worst_are_reserved() -> None:
    booting = GroupDemand(4, 40.0, growth(100.0, 0.0, 300.0))
    larger = GroupDemand(2, 250.0, growth(100.0, 0.0, 300.0))
    assert pooled_bytes([booting, larger]) == pytest.approx(360 + 800)


def test_settled_groups_above_and_below_their_mean_set_each_other_off() -> None:
    below = GroupDemand(2, 150.0, growth(100.0), turn=4)
    above = GroupDemand(2, 240.0, growth(100.0), turn=9)
    booting = GroupDemand(2, 150.0, growth(100.0), turn=3)
    assert pooled_bytes([below]) == 50
    assert pooled_bytes([below, above]) == 10
    assert pooled_bytes([booting, above]) == 50


def test_a_node_fills_by_a_ramp_and_one_group_always_starts() -> None:
    other = GroupDemand(1, 0.0, growth(80.0))
    starting = NodeLoad(1_000, 10.0, 0, (other,), (), PressureGate())
    refused = admit(starting, ask(members=1), RULES)
    assert refused == Refused(Why.STARTING, Resource.STARTS, 130.0, 100.0)
    turned = NodeLoad(1_000, 10.0, 0, (replace(other, turn=1),), (), PressureGate())
    assert isinstance(admit(turned, ask(members=8), RULES), Admitted)


def test_no_reserve_exceeds_what_ceilings_allow() -> None:
    capped = growth(100.0, 500.0, 300.0)
    demand = GroupDemand(2, 150.0, type(capped)(100.0, 500.0, 300.0, 120.0))
    assert pooled_bytes([demand]) == pytest.approx(2 * 120 - 150)


def test_a_ledger_admits_by_use_and_learns_from_what_ended() -> None:
    ledger = NodeLedger(NodePages(64 * GIB), 1_000.0, Rules())
    first = ledger.answer(spec(), 8)
    assert isinstance(first, Admitted)
    for number in range(10):
        group = GroupId(f"g{number}")
        keys = [key(index, group) for index in range(8)]
        ledger.begin(spec(), group, keys)
        for one in keys:
            ledger.sample(group, one, PageUse(150 * MIB, 0, 5 * MIB))
            ledger.turn_ended(group, one, 150 * MIB)
            ledger.turn_ended(group, one, 160 * MIB)
        assert ledger.faults() == []
        for one in keys:
            ledger.end(group, one)
            ledger.taught(spec(), Life(60.0, 0.1, 0.02), is_last_of_group=one == keys[-1])
    later = ledger.answer(spec(), 8)
    assert isinstance(later, Admitted)
    assert later.bytes_left > first.bytes_left + GIB
    assert ledger.pages.private_bytes == 0
    assert ledger.pages.shared_bytes == 90 * MIB


def test_a_ledger_finds_its_own_contradictions() -> None:
    ledger = NodeLedger(NodePages(64 * GIB), 10.0, Rules())
    ledger.begin(spec(), GroupId("g"), [key(0)])
    ledger.pages.measure(key(0), PageUse(MIB))
    assert ledger.faults() == [f"g: 0 kept, {MIB} held"]
