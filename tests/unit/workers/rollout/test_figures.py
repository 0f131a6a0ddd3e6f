"""The watch over the engine's thread."""

import asyncio

import pytest

from domain.engine import GenRequest, PauseMode, RequestId, Sampling
from infra.clock import ManualClock
from tests.support import eventually
from tests.unit.workers.rollout.builders import GROUP, ROLLOUT, ids, scripted
from workers.rollout.figures import EngineWatch
from workers.rollout.outcomes import EngineFault
from workers.rollout.scripted.engine import ScriptedEngine
from workers.rollout.scripted.script import ScriptedAnswer


async def stuck(clock: ManualClock) -> tuple[ScriptedEngine, "asyncio.Task[object]"]:
    engine = scripted(ScriptedAnswer(ids("a2;"), delay_s=1e9), clock=clock)
    request = GenRequest(RequestId("r"), ROLLOUT, GROUP, "org", ids("1"), Sampling(4))
    running: asyncio.Task[object] = asyncio.create_task(engine.generate(request))
    await eventually(lambda: engine.stats().active == 1)
    return engine, running


async def test_an_engine_without_a_decode_step_beyond_the_bound_is_a_fault(
    clock: ManualClock,
) -> None:
    engine, running = await stuck(clock)
    watch = EngineWatch(engine, clock, 8.0)
    watch.check()
    clock.advance(8.0)
    watch.check()
    clock.advance(0.1)
    with pytest.raises(EngineFault, match="no decode step"):
        watch.check()
    running.cancel()


async def test_an_idle_or_paused_engine_may_stand_still(clock: ManualClock) -> None:
    idle = EngineWatch(scripted("a2;", clock=clock), clock, 8.0)
    engine, running = await stuck(clock)
    await engine.pause(PauseMode.KEEP)
    paused = EngineWatch(engine, clock, 8.0)
    for watch in (idle, paused):
        watch.check()
        clock.advance(100.0)
        watch.check()
    running.cancel()
