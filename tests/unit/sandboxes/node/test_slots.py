"""Room on a node: the reserve is never an agent's, nobody overtakes, nothing leaks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.sandbox import SandboxPurpose
from sandboxes.node.slots import Slots

AGENT, GRADER = SandboxPurpose.AGENT, SandboxPurpose.GRADER


async def waiting(slots: Slots, purpose: SandboxPurpose, count: int) -> "asyncio.Task[None]":
    """A take that found no room."""
    task = asyncio.create_task(slots.take(purpose, count))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_agents_never_take_the_reserve() -> None:
    slots = Slots(4, reserve=1)
    await slots.take(AGENT, 3)
    late = await waiting(slots, AGENT, 1)
    await slots.take(GRADER, 1)
    assert (slots.taken(AGENT), slots.taken(GRADER)) == (3, 1)
    slots.give(GRADER)
    await asyncio.sleep(0)
    assert not late.done()
    slots.give(AGENT)
    await late
    assert slots.taken(AGENT) == 3


async def test_branches_count_as_agents() -> None:
    slots = Slots(4, reserve=1)
    await slots.take(AGENT, 2)
    await slots.take(SandboxPurpose.BRANCH, 1)
    late = await waiting(slots, SandboxPurpose.BRANCH, 1)
    later = await waiting(slots, AGENT, 1)
    await slots.take(GRADER, 1)
    slots.give(AGENT)
    await asyncio.sleep(0)
    assert late.done()
    assert not later.done()
    assert "3 agents and 1 graders of 4" in slots.describe()
    slots.give(SandboxPurpose.BRANCH)
    await later


async def test_graders_may_use_what_agents_leave() -> None:
    slots = Slots(4, reserve=1)
    await slots.take(GRADER, 4)
    agent = await waiting(slots, AGENT, 1)
    slots.give(GRADER, 4)
    await agent


async def test_a_large_fork_is_not_starved_by_small_ones() -> None:
    slots = Slots(5, reserve=1)
    await slots.take(AGENT, 3)
    large = await waiting(slots, AGENT, 4)
    small = await waiting(slots, AGENT, 1)
    slots.give(AGENT, 3)
    await large
    assert not small.done()
    slots.give(AGENT, 4)
    await small


async def test_a_waiter_that_gives_up_takes_nothing() -> None:
    slots = Slots(3, reserve=1)
    await slots.take(AGENT, 2)
    late = await waiting(slots, AGENT, 1)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    slots.give(AGENT, 2)
    assert slots.taken(AGENT) == 0


async def test_a_waiter_cancelled_as_it_is_admitted_gives_back() -> None:
    slots = Slots(3, reserve=1)
    await slots.take(AGENT, 2)
    late = await waiting(slots, AGENT, 1)
    slots.give(AGENT, 2)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert slots.taken(AGENT) == 0


async def test_giving_back_twice_is_a_defect() -> None:
    slots = Slots(3, reserve=1)
    with pytest.raises(AssertionError):
        slots.give(AGENT)


@given(st.lists(st.tuples(st.sampled_from([AGENT, GRADER]), st.integers(1, 4)), max_size=30))
def test_no_sequence_of_takes_and_gives_breaks_the_bounds(
    asked: list[tuple[SandboxPurpose, int]],
) -> None:
    async def run() -> None:
        slots = Slots(6, reserve=2)
        tasks = [asyncio.create_task(slots.take(purpose, count)) for purpose, count in asked]
        for _ in range(len(asked) + 1):
            await asyncio.sleep(0)
            assert slots.taken(AGENT) <= 4
            assert slots.taken(AGENT) + slots.taken(GRADER) <= 6
            for task, (purpose, count) in zip(tasks, asked, strict=True):
                if task.done() and not task.cancelled():
                    slots.give(purpose, count)
                    task.cancel()
            tasks, asked_left = _open(tasks, asked)
            asked[:] = asked_left
        assert not tasks
        assert slots.taken(AGENT) == slots.taken(GRADER) == 0

    asyncio.run(run())


def _open(
    tasks: list["asyncio.Task[None]"], asked: list[tuple[SandboxPurpose, int]]
) -> tuple[list["asyncio.Task[None]"], list[tuple[SandboxPurpose, int]]]:
    left = [(task, one) for task, one in zip(tasks, asked, strict=True) if not task.done()]
    return [task for task, _ in left], [one for _, one in left]
