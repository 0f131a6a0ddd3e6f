"""Places by priority: order, bound, and nobody's cancellation costs a place."""

import asyncio

from infra.room import Room


async def _visit(room: Room, priority: int, name: str, log: list[str]) -> None:
    async with room.place(priority):
        log.append(name)
        await asyncio.sleep(0)


async def test_the_lowest_priority_goes_first_then_who_came_first() -> None:
    room = Room(1)
    log: list[str] = []
    async with room.place(0):
        visits = [
            asyncio.create_task(_visit(room, priority, name, log))
            for priority, name in ((1, "c"), (0, "a"), (1, "d"), (0, "b"))
        ]
        await asyncio.sleep(0)
        assert log == []
    await asyncio.gather(*visits)
    assert log == ["a", "b", "c", "d"]


async def test_no_more_than_size_are_inside() -> None:
    room, inside, most = Room(3), 0, 0

    async def visit() -> None:
        nonlocal inside, most
        async with room.place(0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(visit() for _ in range(20)))
    assert (most, inside) == (3, 0)


async def test_who_is_cancelled_while_waiting_or_just_served_leaves_the_place_to_others() -> None:
    room = Room(1)
    log: list[str] = []
    holder = room.place(0)
    await holder.__aenter__()
    waiting = asyncio.create_task(_visit(room, 0, "waiting", log))
    served = asyncio.create_task(_visit(room, 1, "served", log))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    await holder.__aexit__(None, None, None)
    served.cancel()
    await asyncio.gather(waiting, served, return_exceptions=True)
    await asyncio.wait_for(_visit(room, 5, "last", log), 1)
    assert log == ["last"]
