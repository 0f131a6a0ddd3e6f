"""Sandbox calls: once a key, the result again until the turn is acknowledged."""

import asyncio

import pytest

from sandboxes.node.calls import CALLS_PER_TURN_MAX, CallLog
from venusrl.env.sandbox import CallKey, ReadRequest, SandboxError, SandboxRequest, SandboxResult


def key(turn: int, ordinal: int) -> CallKey:
    return CallKey("ro_x", 1, turn, ordinal)


class Counting:
    """Answers with the number of the call."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: SandboxRequest) -> SandboxResult:
        self.calls += 1
        number = self.calls
        await self.gate.wait()
        return str(number).encode()


async def test_a_key_runs_once_and_its_result_is_given_again() -> None:
    run = Counting()
    log = CallLog(run)
    assert await log.call(key(0, 0), ReadRequest("a")) == b"1"
    assert await log.call(key(0, 0), ReadRequest("a")) == b"1"
    assert await log.call(key(0, 1), ReadRequest("a")) == b"2"
    assert (run.calls, log.total) == (2, 2)


async def test_a_caller_that_is_cancelled_does_not_undo_the_call() -> None:
    run = Counting()
    run.gate.clear()
    log = CallLog(run)
    first = asyncio.create_task(log.call(key(0, 0), ReadRequest("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    run.gate.set()
    assert await log.call(key(0, 0), ReadRequest("a")) == b"1"
    assert run.calls == 1


async def test_acknowledged_turns_are_forgotten() -> None:
    log = CallLog(Counting())
    await log.call(key(-1, 0), ReadRequest("a"))
    await log.call(key(0, 0), ReadRequest("a"))
    log.acknowledge(-1)
    assert await log.call(key(0, 0), ReadRequest("a")) == b"2"
    log.acknowledge(0)
    assert await log.call(key(0, 0), ReadRequest("a")) == b"3"


async def test_too_many_calls_of_one_turn_are_refused() -> None:
    log = CallLog(Counting())
    for ordinal in range(CALLS_PER_TURN_MAX):
        await log.call(key(0, ordinal), ReadRequest("a"))
    with pytest.raises(SandboxError) as refused:
        await log.call(key(0, CALLS_PER_TURN_MAX), ReadRequest("a"))
    assert refused.value.reason == "refused"
