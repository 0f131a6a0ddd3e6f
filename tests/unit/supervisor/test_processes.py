"""The supervisor's promises, kept with real child processes that are small programs of our own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisor.launch import Launch
from supervisor.processes import (
    LONGEST_DELAY_S,
    Service,
    StartError,
    Supervisor,
    delay_before_start,
    run_to_end,
    tail,
)
from tests.support import eventually

SERVING = "import signal; print('serving', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVING + "\n" * 2
ENDING = "import sys; print('no such thing'); sys.exit(3)"


def launch(name: str, code: str, grace_s: float = 5.0) -> Launch:
    return Launch(
        name, (sys.executable, "-S", "-c", code), {"PATH": os.defpath}, stop_grace_s=grace_s
    )


def service(logs: Path, name: str, code: str = SERVING, within_s: float = 10.0) -> Service:
    def is_ready(_pid: int) -> bool:
        return "serving" in tail(logs / f"{name}.log")

    return Service(launch(name, code), is_ready, within_s)


@asynccontextmanager
async def supervising(
    logs: Path, on_change: Callable[[], None] = lambda: None
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(logs, on_change)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def test_a_stage_has_started_when_all_of_it_serves(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervisor:
        await supervisor.start([service(tmp_path, "a"), service(tmp_path, "b")])
        assert set(supervisor.pids) == {"a", "b"}


async def test_a_killed_child_comes_back_under_another_pid(tmp_path: Path) -> None:
    changes: list[None] = []
    async with supervising(tmp_path, lambda: changes.append(None)) as supervisor:
        await supervisor.start([service(tmp_path, "a")])
        first = supervisor.pids["a"]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: supervisor.pids.get("a", first) != first)
        await eventually(lambda: len(changes) == 2)


async def test_stop_ends_the_last_stage_first(tmp_path: Path) -> None:
    noting = (
        "import signal, sys\n"
        "def note(*_):\n"
        "    open({log!r}, 'a').write({name!r}); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "print('serving', flush=True)\n"
        "signal.pause()\n"
    )
    order = tmp_path / "order"
    async with supervising(tmp_path) as supervisor:
        for name in ("a", "b"):
            code = noting.format(log=str(order), name=name)
            await supervisor.start([service(tmp_path, name, code)])
    assert order.read_text() == "ba"


async def test_a_child_that_ignores_the_request_is_killed_after_its_grace(tmp_path: Path) -> None:
    stubborn = Service(
        launch("a", STUBBORN, grace_s=0.3), lambda _pid: "serving" in tail(tmp_path / "a.log")
    )
    supervisor = Supervisor(tmp_path)
    await supervisor.start([stubborn])
    pid = supervisor.pids["a"]
    await supervisor.stop()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_child_that_always_ends_fails_the_start_with_its_log(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervisor:
        with pytest.raises(StartError, match="no such thing"):
            await supervisor.start([service(tmp_path, "a", ENDING)])


async def test_a_child_that_never_serves_fails_the_start(tmp_path: Path) -> None:
    mute = "import signal; signal.pause()"
    async with supervising(tmp_path) as supervisor:
        with pytest.raises(StartError, match="not ready"):
            await supervisor.start([service(tmp_path, "a", mute, within_s=0.3)])


async def test_one_failing_child_fails_the_stage_and_the_others_are_stopped(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    with pytest.raises(StartError):
        await supervisor.start([service(tmp_path, "a"), service(tmp_path, "b", ENDING)])
    await supervisor.stop()
    assert supervisor.pids == {}


async def test_stopping_during_the_start_leaves_no_child(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    mute = service(tmp_path, "a", "import signal; signal.pause()")
    starting = asyncio.create_task(supervisor.start([mute]))
    await eventually(lambda: "a" in supervisor.pids)
    starting.cancel()
    await supervisor.stop()
    assert supervisor.pids == {}


async def test_a_program_that_ends_well_or_badly_is_told_apart(tmp_path: Path) -> None:
    await run_to_end(launch("good", "pass"), tmp_path / "good.log")
    with pytest.raises(StartError, match="no such thing"):
        await run_to_end(launch("bad", ENDING), tmp_path / "bad.log")


def test_back_off_doubles_up_to_its_bound() -> None:
    delays = [delay_before_start(failures) for failures in range(12)]
    assert delays[:4] == [0.0, 0.25, 0.5, 1.0]
    assert max(delays) == delays[-1] == LONGEST_DELAY_S
