"""Commands by key: each runs once, whoever hangs up and asks again."""

import asyncio

import pytest

from infra.door_frames import DoorExec, DoorExecuted, DoorReason
from sandboxes.client import CallRefused
from workers.fleet.tenants import held
from workers.fleet.tenants.calls import with_variables
from workers.fleet.tenants.held import Calls

RAN = DoorExecuted(0, 0, b"out", b"", 0, timed_out=False, wall_s=0.1)


def command(key: str = "k", *argv: str) -> DoorExec:
    """A command under a key."""
    return DoorExec(0, "sbx", key, argv or ("true",), b"", {}, 5.0, 100)


class Machine:
    """Counts what runs; `gate` holds it back."""

    def __init__(self) -> None:
        """Nothing has run."""
        self.runs = 0
        self.gate = asyncio.Event()

    async def run(self) -> DoorExecuted:
        """One run."""
        self.runs += 1
        await self.gate.wait()
        return RAN


async def test_a_caller_that_hangs_up_finds_its_answer() -> None:
    calls, machine = Calls(), Machine()
    first = asyncio.create_task(calls.once(command(), machine.run))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    machine.gate.set()
    assert await calls.once(command(), machine.run) == RAN
    assert machine.runs == 1


async def test_a_key_is_of_one_command() -> None:
    calls, machine = Calls(), Machine()
    machine.gate.set()
    await calls.once(command(), machine.run)
    with pytest.raises(CallRefused) as refused:
        await calls.once(command("k", "false"), machine.run)
    assert refused.value.reason is DoorReason.OTHER_CALL
    assert machine.runs == 1


async def test_an_answer_that_is_no_longer_kept_is_never_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held, "ANSWERS_MAX", 2)
    calls, machine = Calls(), Machine()
    machine.gate.set()
    for key in "abcd":
        await calls.once(command(key), machine.run)
    with pytest.raises(CallRefused) as refused:
        await calls.once(command("a"), machine.run)
    assert refused.value.reason is DoorReason.FORGOTTEN
    assert await calls.once(command("d"), machine.run) == RAN
    assert machine.runs == 4


async def test_a_command_that_runs_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "ANSWERS_MAX", 1)
    monkeypatch.setattr(held, "KEYS_MAX", 2)
    calls, machine = Calls(), Machine()
    waiting = [asyncio.create_task(calls.once(command(key), machine.run)) for key in "abcd"]
    await asyncio.sleep(0)
    machine.gate.set()
    assert await asyncio.gather(*waiting) == [RAN] * 4


def test_variables_stand_before_the_command() -> None:
    assert with_variables({}, ("ls", "-l")) == ("ls", "-l")
    given = with_variables({"B": "2 3", "A": "1"}, ("ls", "-l"))
    assert given == ("/usr/bin/env", "A=1", "B=2 3", "ls", "-l")
