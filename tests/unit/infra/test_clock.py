"""The manual clock moves only when told, and wakes sleepers in order."""

import asyncio

from infra.clock import ManualClock, SystemClock


async def test_sleepers_wake_in_order_of_their_deadlines(clock: ManualClock) -> None:
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleeper("late", 2.0))
        tasks.create_task(sleeper("early", 1.0))
        await asyncio.sleep(0)
        clock.advance(5.0)
    assert woken == ["early", "late"]


async def test_a_sleeper_stays_asleep_before_its_deadline(clock: ManualClock) -> None:
    task = asyncio.create_task(clock.sleep(2.0))
    await asyncio.sleep(0)
    clock.advance(1.9)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(0.1)
    await task


async def test_a_cancelled_sleeper_does_not_hinder_the_others(clock: ManualClock) -> None:
    cancelled = asyncio.create_task(clock.sleep(1.0))
    other = asyncio.create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    clock.advance(1.0)
    await other


def test_wall_and_monotonic_time_advance_together(clock: ManualClock) -> None:
    before, start = clock.now(), clock.monotonic()
    clock.advance(90.0)
    assert (clock.now() - before).total_seconds() == clock.monotonic() - start == 90.0


def test_the_system_clock_speaks_utc() -> None:
    assert SystemClock().now().utcoffset() is not None
