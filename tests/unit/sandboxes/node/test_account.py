"""Admission by bytes on a node: what is measured counts, what is refused says its numbers."""

import asyncio

import pytest

from domain.sandbox import SandboxPurpose
from sandboxes.core.admission import Resource, Why
from sandboxes.core.names import GIB, MIB
from sandboxes.node.account import in_words
from sandboxes.node.slots import NeverFits, Slots
from sandboxes.ports import SandboxStats
from tests.unit.sandboxes.node.made import AGENT, GRADER, account, ask, learned, member


def test_declared_ceilings_are_not_what_is_added_up() -> None:
    node = account(capacity=4 * GIB)
    learned(node, held_mib=100)
    for number in range(5):
        wave = ask(4, f"g{number}")
        assert node.refusal(wave) is None, "20 GiB are declared on a node of 4"
        node.begin(wave)
        for key in wave.members:
            node.measure(key, SandboxStats(100 * MIB, 3))
            node.turn_ended(key)


def test_what_is_held_now_stops_the_next_group() -> None:
    node = account(capacity=4 * GIB)
    learned(node, held_mib=100)
    first = ask(4, "first")
    node.begin(first)
    for key in first.members:
        node.turn_ended(key)
        node.measure(key, SandboxStats(900 * MIB, 3))
    refused = node.refusal(ask(4, "second"))
    assert refused is not None
    assert (refused.why, refused.resource) == (Why.NO_ROOM, Resource.MEMORY)
    assert refused.available == 0.9 * 4 * GIB
    assert "MiB needed, 3686 MiB available" in in_words(refused)
    for key in first.members:
        node.end(key)
    assert node.refusal(ask(4, "second")) is None


def test_what_others_of_the_machine_use_is_taken_off() -> None:
    node = account(capacity=4 * GIB)
    node.owns_all = False
    learned(node, held_mib=100)
    node.others_use(3900 * MIB)
    assert node.refusal(ask(1)) is not None
    node.others_use(1000 * MIB)
    assert node.refusal(ask(1)) is None
    node.begin(ask(1))
    node.measure(member(0), SandboxStats(200 * MIB, 1))
    node.others_use(1000 * MIB)
    assert node.ledger.pages.resident_bytes == 1000 * MIB, "ours is in what the machine uses"


def test_shared_pages_count_once_and_swapped_ones_are_not_in_memory() -> None:
    node = account(capacity=4 * GIB)
    wave = ask(3)
    node.begin(wave)
    for number, key in enumerate(wave.members):
        shared = (80 - 10 * number) * MIB
        node.measure(key, SandboxStats(100 * MIB, 3, 30 * MIB, shared, 20 * MIB))
    pages = node.ledger.pages
    assert pages.shared_bytes == 80 * MIB, "siblings that wrote more map less of the same"
    assert pages.resident_bytes == (80 + 3 * (100 - 30 + 20)) * MIB
    assert pages.committed_bytes == (80 + 3 * (100 + 20)) * MIB
    for key in wave.members:
        node.end(key)
    assert (pages.shared_bytes, pages.committed_bytes) == (0, 0)
    node.begin(wave)
    node.measure(wave.members[0], SandboxStats(100 * MIB, 3, 0, 50 * MIB))
    assert pages.shared_bytes == 50 * MIB
    assert node.ledger.faults() == []


def test_the_grading_reserve_is_never_an_agents() -> None:
    node = account(capacity=4 * GIB, grading_reserve=1)
    learned(node, held_mib=100)
    first = ask(4, "first")
    node.begin(first)
    for key in first.members:
        node.turn_ended(key)
        node.measure(key, SandboxStats(720 * MIB, 3))
    refused = node.refusal(ask(1, "second"))
    assert refused is not None
    assert refused.why is Why.GRADING_RESERVE
    assert node.refusal(ask(1, "first", GRADER, ceiling=512 * MIB)) is None


def test_a_member_asked_for_twice_is_held_once() -> None:
    node = account()
    node.begin(ask(2))
    node.begin(ask(3))
    assert node.members() == ask(3).members
    for key in (*ask(3).members, member(0)):
        node.end(key)
    assert node.ledger.faults() == []


def test_a_stopped_gate_refuses_with_the_pressure() -> None:
    node = account()
    node.ledger.gate.sample(0.0, 0.07)
    refused = node.refusal(ask(1))
    assert refused is not None
    assert in_words(refused) == (
        "pressure: under_pressure: 7.0% of time waited for memory, 2% is calm"
    )


async def test_the_count_stays_a_cap_over_the_bytes() -> None:
    slots = Slots(3, 1, account())
    await slots.take(AGENT, 2, ask(2))
    late = asyncio.create_task(slots.take(AGENT, 1, ask(1, "late")))
    await asyncio.sleep(0)
    assert not late.done()
    assert slots.describe(ask(1, "late")).startswith("sandboxes: 2 agents")
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)


async def test_who_waits_for_memory_is_admitted_once_a_sample_says_so() -> None:
    node = account(capacity=4 * GIB)
    learned(node, held_mib=100)
    slots = Slots(16, 1, node)
    first = ask(4, "first")
    await slots.take(AGENT, 4, first)
    for key in first.members:
        node.turn_ended(key)
        node.measure(key, SandboxStats(900 * MIB, 3))
    late = asyncio.create_task(slots.take(AGENT, 4, ask(4, "late")))
    await asyncio.sleep(0)
    assert not late.done()
    for key in first.members:
        node.measure(key, SandboxStats(120 * MIB, 3))
    slots.admit()
    await late
    assert len(node.members()) == 8


async def test_a_waiter_cancelled_as_it_is_admitted_gives_its_memory_back() -> None:
    node = account()
    slots = Slots(3, 1, node)
    await slots.take(AGENT, 2, ask(2))
    late = asyncio.create_task(slots.take(AGENT, 1, ask(1, "late")))
    await asyncio.sleep(0)
    slots.give(AGENT, 2)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert slots.taken(AGENT) == 0
    assert node.members() == ask(2).members


async def test_more_than_an_empty_node_takes_is_refused_at_once_and_half_is_not() -> None:
    slots = Slots(64, 1, account(capacity=4 * GIB))
    with pytest.raises(NeverFits, match="memory: never_fits: 8192 MiB needed, 3686 MiB available"):
        await slots.take(AGENT, 8, ask(8))
    assert slots.taken(AGENT) == 0
    assert slots.never(ask(2)) is None


def test_a_grading_wave_of_unmeasured_graders_is_not_refused_for_ever() -> None:
    node = account(capacity=4 * GIB)
    assert node.refusal(ask(16, purpose=SandboxPurpose.GRADER, ceiling=512 * MIB)) is None
    node.ledger.pages.other_bytes = 4 * GIB
    refused = node.refusal(ask(16, purpose=SandboxPurpose.GRADER, ceiling=512 * MIB))
    assert refused is not None
    assert refused.why is Why.NO_ROOM
