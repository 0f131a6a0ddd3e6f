"""The ladder acted out: cheapest first, nobody killed for what is being freed, no late sleeper."""

import asyncio
from dataclasses import dataclass, field

import pytest

from domain.sandbox import MemberKey
from infra.clock import ManualClock
from sandboxes.core.ladder import Rung
from sandboxes.core.names import GIB, MIB
from sandboxes.node.elastic import as_elastic
from sandboxes.node.generation import Generation
from sandboxes.node.machine import MachineUse
from sandboxes.node.relief import Relief
from sandboxes.node.sampler import Sampler
from sandboxes.node.slots import Slots
from tests.support.waiting import eventually
from tests.unit.sandboxes.node.made import AGENT, GRADER, ElasticRuntime, account, ask, member
from venusrl.env.sandbox import SandboxError


@dataclass
class Pressed:
    """Four sandboxes of 250 MiB on a node of 1 GiB, ranked by index."""

    runtime: ElasticRuntime = field(default_factory=ElasticRuntime)
    lost: dict[MemberKey, str] = field(default_factory=dict)
    swap_free: int = 8 * GIB

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.account = account(GIB)
        elasticity = as_elastic(self.runtime)
        self.relief = Relief(self.account, elasticity, self.lost.__setitem__)
        self.slots = Slots(8, 1, self.account)
        self.sampler = Sampler(self.runtime, self.slots, self.relief, self.clock, lambda: self.seen)
        self.pressure: float | None = 0.0
        self.account.begin(ask(4))
        for index in range(4):
            self.runtime.hold(member(index), 250)
            self.relief.generations.ranks[member(index)] = index

    @property
    def seen(self) -> MachineUse:
        return MachineUse(0, self.swap_free, self.pressure)

    def generates(self, *indexes: int, expected_s: float = 60.0) -> None:
        for index in indexes:
            generation = Generation(self.clock.monotonic(), expected_s, index)
            self.relief.generations.begin(member(index), generation)

    async def look(self) -> list[tuple[str, int]]:
        """One round; what the runtime was asked in it, once that is done."""
        before = len(self.runtime.asked)
        await self.sampler.look()
        for _ in range(8):
            await asyncio.sleep(0)
        return self.runtime.asked[before:]


async def test_memory_is_taken_first_from_a_sandbox_whose_rollout_is_in_generation() -> None:
    node = Pressed()
    node.generates(1)
    assert await node.look() == [("reclaim", 1)]
    assert node.relief.done == {Rung.STOP_ADMISSION: 1, Rung.BALLOON: 1}
    assert not node.account.ledger.gate.is_open
    assert await node.look() == []
    assert node.lost == {}


async def test_a_long_gap_is_paused_and_paged_out_and_a_short_one_is_not() -> None:
    node = Pressed(ElasticRuntime(balloon=False))
    node.generates(0, expected_s=0.0)
    node.generates(3)
    assert await node.look() == [("pause", 3), ("reclaim", 3)]
    assert node.relief.is_paused(member(3))
    assert not node.relief.is_paused(member(0))
    assert node.lost == {}


async def test_a_paused_sandbox_runs_again_before_its_turn_does() -> None:
    node = Pressed(ElasticRuntime(balloon=False))
    node.generates(3)
    await node.look()
    await asyncio.gather(node.relief.wake(member(3)), node.relief.wake(member(3)))
    assert node.runtime.asked == [("pause", 3), ("reclaim", 3), ("resume", 3)]
    assert node.relief.paused == 0
    await node.relief.wake(member(0))
    assert node.runtime.asked[-1] == ("resume", 3), "what runs is left alone"


async def test_a_turn_that_comes_while_its_pages_go_out_waits_for_that_and_resumes() -> None:
    node = Pressed(ElasticRuntime(balloon=False))
    node.generates(3)
    await node.sampler.look()
    await node.relief.wake(member(3))
    assert node.runtime.asked == [("pause", 3), ("reclaim", 3), ("resume", 3)]


async def test_the_worst_rank_is_killed_only_when_nothing_else_is_left_and_one_at_a_time() -> None:
    node = Pressed(ElasticRuntime(balloon=False, page_out=False))
    node.runtime.hold(member(0), 500)
    await node.look()
    assert list(node.lost) == [member(3)]
    cause = node.lost[member(3)]
    assert cause.startswith("memory_pressure: the node held 1250 of 1024 MiB")
    assert "of its 4 sandboxes this one, of 250 MiB, ranked worst" in cause
    await node.look()
    assert list(node.lost) == [member(3), member(2)], "one that is not gone yet counts as gone"
    node.relief.forget(member(3))
    node.account.end(member(3))
    node.relief.forget(member(2))
    node.account.end(member(2))
    await node.look()
    assert len(node.lost) == 2


async def test_a_sandbox_in_which_nothing_was_done_yet_goes_before_any_rank() -> None:
    node = Pressed(ElasticRuntime(balloon=False, page_out=False))
    del node.relief.generations.ranks[member(1)]
    await node.look()
    assert list(node.lost) == [member(1)]


async def test_graders_are_never_on_the_ladder() -> None:
    node = Pressed(ElasticRuntime(balloon=False, page_out=False))
    for index in range(4):
        node.account.end(member(index))
    graders = ask(4, purpose=GRADER)
    node.account.begin(graders)
    for key in graders.members:
        node.runtime.hold(key, 300)
    await node.look()
    assert node.lost == {}
    assert not node.account.ledger.gate.is_open, "they finish, and nobody else starts"


async def test_nobody_is_killed_for_bytes_that_are_on_their_way_out() -> None:
    node = Pressed(ElasticRuntime(balloon=False))
    node.generates(2, 3)
    for _ in range(3):
        await node.sampler.look()
    assert node.lost == {}
    assert node.relief.done[Rung.KILL] == 0


async def test_without_swap_a_pause_frees_nothing_and_is_not_done() -> None:
    node = Pressed(ElasticRuntime(balloon=False), swap_free=0)
    node.generates(0, 1, 2, 3)
    assert await node.look() == []
    assert list(node.lost) == [member(3)]


async def test_a_balloon_that_gets_nothing_is_not_tried_again_in_the_same_generation() -> None:
    node = Pressed(ElasticRuntime(page_out=False, gets=0.0))
    node.generates(0, 1, 2, 3)
    asked = await node.look()
    assert {name for name, _ in asked} == {"reclaim"}
    assert node.lost == {}
    for _ in range(4):
        asked += await node.look()
    assert sorted(asked) == [("reclaim", index) for index in range(4)]
    assert next(iter(node.lost)) == member(3), "every balloon was tried before"


async def test_a_sandbox_that_cannot_be_resumed_is_lost_with_the_cause() -> None:
    node = Pressed(ElasticRuntime(balloon=False, broken={"resume"}))
    node.generates(3)
    await node.look()
    with pytest.raises(SandboxError, match="resume_failed"):
        await node.relief.wake(member(3))
    assert node.lost[member(3)].startswith("resume_failed: lost: resume failed")


async def test_a_destroyed_sandbox_leaves_nothing_in_the_ladder() -> None:
    node = Pressed(ElasticRuntime(balloon=False))
    node.generates(2, 3)
    await node.look()
    for index in range(4):
        node.relief.forget(member(index))
        node.account.end(member(index))
    await eventually(lambda: node.relief.paused == 0)
    assert node.relief.generations.running == {}
    assert node.relief.generations.ranks == {}
    assert await node.look() == []


async def test_admission_resumes_after_a_stretch_of_calm() -> None:
    node = Pressed()
    node.pressure = 0.06
    await node.look()
    for index in range(4):
        node.relief.forget(member(index))
        node.account.end(member(index))
    late = asyncio.create_task(node.slots.take(AGENT, 1, ask(1, "late", ceiling=512 * MIB)))
    node.pressure = 0.0
    for _ in range(30):
        await node.look()
        assert not late.done()
        node.clock.advance(1.0)
        await asyncio.sleep(0)
    await node.look()
    await asyncio.wait_for(late, 1.0)


async def test_pressure_that_cannot_be_read_is_told_as_such() -> None:
    node = Pressed()
    node.pressure = None
    await node.look()
    figures = node.sampler.figures()
    assert figures["pressure"] == -1.0
    assert figures["private_bytes"] == 1000 * MIB
    assert figures["private_bytes/att"] == 1000 * MIB
    assert figures["capacity_bytes"] == GIB
