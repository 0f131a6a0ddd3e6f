"""Environment processes: one a key, started again with back-off, poison in the end."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from domain.ids import AttemptId
from infra.clock import ManualClock
from tests.support.waiting import eventually
from venusrl.env.host.manifest import Manifest
from venusrl.env.host.ports import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentInfo,
    EnvironmentProcess,
    InstanceKey,
    Observation,
    RolloutGrade,
    SandboxPort,
)
from venusrl.env.messages import Finish, Json, Message, Rollout, Task
from workers.fleet.environment_pool import (
    DEATHS_MAX,
    PROCESSES_MAX,
    RESPAWN_PAUSE_MAX_S,
    RESPAWN_PAUSE_S,
    EnvironmentKey,
    EnvironmentPool,
)
from workers.fleet.packages import Package

PACKAGE = Package(Path("package"), Manifest("test", "1", "env:Env"))
KEY = EnvironmentKey(AttemptId("att_a"), "ever_1", "{}")
OTHER = EnvironmentKey(AttemptId("att_b"), "ever_1", "{}")


class Process:
    """A process that lives until the test ends it."""

    def __init__(self) -> None:
        self.fault: EnvironmentFault | None = None
        self.lag_s = 0.01
        self.is_stopped = False
        self.info = EnvironmentInfo()

    def die(self) -> None:
        self.fault = EnvironmentCrashed("process_killed", "signal 9")

    async def stop(self) -> None:
        self.is_stopped = True

    async def load(self, split: str) -> tuple[Task, ...]:
        raise NotImplementedError

    async def open(
        self, key: InstanceKey, task: Task, seed: int, sandbox: SandboxPort | None
    ) -> None:
        raise NotImplementedError

    async def setup(self, key: InstanceKey) -> Json:
        raise NotImplementedError

    async def reply(
        self, key: InstanceKey, turn: int, message: Message, finish: Finish = "stop"
    ) -> Observation:
        raise NotImplementedError

    async def snapshot(self, key: InstanceKey) -> Json:
        raise NotImplementedError

    async def restore(self, key: InstanceKey, state: Json, history: Sequence[Message]) -> None:
        raise NotImplementedError

    async def close(self, key: InstanceKey) -> None:
        raise NotImplementedError

    async def grade(
        self, rollouts: Sequence[Rollout], seed: int, grader: SandboxPort | None
    ) -> tuple[RolloutGrade, ...]:
        raise NotImplementedError


class Machine:
    """Starts processes, or refuses to."""

    def __init__(self, clock: ManualClock) -> None:
        self.started: list[Process] = []
        self.broken: EnvironmentFault | None = None
        self.clock = clock
        self.pool = EnvironmentPool(self.start, clock)

    async def start(
        self, key: EnvironmentKey, package: Package, config: Mapping[str, Json]
    ) -> EnvironmentProcess:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        self.started.append(Process())
        return self.started[-1]

    async def get(self, key: EnvironmentKey = KEY) -> EnvironmentProcess:
        """The process, with the clock running past any back-off."""
        asking = asyncio.ensure_future(self.pool.get(key, PACKAGE, {}))

        def answered() -> bool:
            self.clock.advance(RESPAWN_PAUSE_MAX_S)
            return asking.done()

        await eventually(answered)
        return await asking


@pytest.fixture
def machine(clock: ManualClock) -> Machine:
    return Machine(clock)


async def test_one_key_is_one_process_however_many_ask(machine: Machine) -> None:
    found = await asyncio.gather(*(machine.pool.get(KEY, PACKAGE, {}) for _ in range(5)))
    assert len({id(one) for one in found}) == len(machine.started) == 1
    assert await machine.get(OTHER) is not found[0]
    assert machine.pool.attempts() == ("att_a", "att_b")


async def test_a_dead_process_is_started_again_after_a_pause(machine: Machine) -> None:
    await machine.get()
    machine.started[0].die()
    asking = asyncio.create_task(machine.pool.get(KEY, PACKAGE, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    machine.clock.advance(RESPAWN_PAUSE_S / 2)
    await asyncio.sleep(0)
    assert not asking.done()
    machine.clock.advance(RESPAWN_PAUSE_S / 2)
    assert await asking is machine.started[1]
    assert machine.pool.restarts == 1


async def test_a_process_that_only_dies_is_poison_and_harms_nobody_else(machine: Machine) -> None:
    await machine.get(OTHER)
    for _ in range(DEATHS_MAX + 1):
        await machine.get()
        machine.started[-1].die()
    with pytest.raises(EnvironmentCrashed, match="poison"):
        await machine.get()
    assert len(machine.started) == DEATHS_MAX + 2
    assert await machine.get(OTHER) is machine.started[0]


async def test_a_successful_call_forgives_earlier_deaths(machine: Machine) -> None:
    for _ in range(2 * DEATHS_MAX):
        await machine.get()
        machine.pool.succeeded(KEY)
        machine.started[-1].die()
    assert await machine.get() is machine.started[-1]


async def test_a_start_that_fails_tells_everybody_who_waits(machine: Machine) -> None:
    machine.broken = EnvironmentCrashed("import_failed", "no module named x")
    asked = [machine.pool.get(KEY, PACKAGE, {}) for _ in range(3)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(one) for one in found] == ["import_failed: no module named x"] * 3
    machine.broken = None
    assert await machine.get() is machine.started[0]


async def test_a_released_attempt_ends_its_processes_and_those_that_wait(
    machine: Machine,
) -> None:
    await machine.get()
    await machine.get(OTHER)
    machine.started[0].die()
    waiting = asyncio.create_task(machine.pool.get(KEY, PACKAGE, {}))
    await asyncio.sleep(0)
    await machine.pool.stop_attempt(KEY.attempt_id)
    with pytest.raises(EnvironmentCrashed, match="stopped"):
        await waiting
    assert machine.pool.attempts() == ("att_b",)
    assert not machine.started[1].is_stopped
    await machine.pool.close()
    assert machine.started[1].is_stopped


async def test_a_caller_that_gives_up_does_not_stop_the_start(machine: Machine) -> None:
    asking = asyncio.create_task(machine.pool.get(KEY, PACKAGE, {}))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await machine.get() is machine.started[0]
    assert len(machine.started) == 1


async def test_a_node_has_only_so_many_environments(machine: Machine) -> None:
    for number in range(PROCESSES_MAX):
        await machine.get(EnvironmentKey(AttemptId(f"att_{number}"), "ever_1", "{}"))
    with pytest.raises(EnvironmentCrashed, match="run already"):
        await machine.get()
    assert machine.pool.lag_s == 0.01
