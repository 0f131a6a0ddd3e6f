"""The warm zygote: what its forks share, what they do not, and what happens when it ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import EventKind, ForkFailed, Mount, SandboxEvent
from sandboxes.runtimes.process import ProcessRuntime
from tests.support.requirements import requires
from tests.support.sandboxes import member, process_runtime, python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import SandboxError

pytestmark = requires("zygote")

MIB = 1 << 20


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    async with process_runtime(tmp_path) as made:
        yield made


def descendants(pid: int) -> set[int]:
    """All processes below one, zombies too."""
    with suppress(psutil.NoSuchProcess):
        return {one.pid for one in psutil.Process(pid).children(recursive=True)}
    return set()


def alive(pids: set[int]) -> set[int]:
    """Those of them that still run."""
    return {pid for pid in pids if Path(f"/proc/{pid}/exe").exists()}


def children() -> set[int]:
    """Processes that this one started; tests before may have left theirs for later ones."""
    return {one.pid for one in psutil.Process().children()}


def ours(others: set[int]) -> set[int]:
    """Our children and all below them, but for these children of ours."""
    own = children() - others
    return own.union(*(descendants(pid) for pid in own))


async def test_an_idle_member_has_less_than_three_mib_of_its_own(runtime: ProcessRuntime) -> None:
    made = await runtime.fork([spec(index) for index in range(16)])
    for one in made:
        assert (await shell(one, "echo ready")).stdout == b"ready\n"
    sizes = [one.stats().private_bytes for one in made]
    assert runtime.zygote_failure is None
    assert max(sizes) < 3 * MIB, sizes
    assert min(sizes) > 0


async def test_what_a_member_allocates_is_its_own(runtime: ProcessRuntime) -> None:
    one, other = await runtime.fork([spec(0), spec(1)])
    before = other.stats().private_bytes
    await python(one, f"held = b'x' * {40 * MIB}")
    assert 40 * MIB < one.stats().private_bytes < 48 * MIB
    assert abs(other.stats().private_bytes - before) < MIB


async def test_members_are_no_twins(runtime: ProcessRuntime) -> None:
    made = await runtime.fork([spec(index) for index in range(4)])
    source = (
        "import random, secrets, uuid\nprint(random.random(), uuid.uuid4(), secrets.token_hex(8))"
    )
    said = [(await python(one, source)).text.split() for one in made]
    for column in zip(*said, strict=True):
        assert len(set(column)) == 4, column


async def test_modules_that_a_member_changes_are_its_own(runtime: ProcessRuntime) -> None:
    one, other = await runtime.fork([spec(0), spec(1)])
    await python(one, "import json\njson.dumps = lambda thing: 'mine'")
    assert (await python(other, "import json\nprint(json.dumps([1]))")).stdout == b"[1]\n"


async def test_a_module_that_is_not_there_costs_the_zygote_and_no_sandbox(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "guest", ("no_such_module_anywhere",))
    try:
        (made,) = await runtime.fork([spec()])
        assert (await python(made, "print(1)")).stdout == b"1\n"
        assert "no_such_module_anywhere" in (runtime.zygote_failure or "")
        assert not runtime.capabilities().cow_memory
    finally:
        await runtime.close()


async def test_a_member_with_a_folder_of_the_host_is_started_all_the_same(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    folder = tmp_path / "grader"
    folder.mkdir()
    (folder / "answer").write_text("42")
    one, other = await runtime.fork([spec(0), spec(1, mounts=(Mount(folder, "/grader"),))])
    assert (await shell(other, "cat /grader/answer")).stdout == b"42"
    assert (await shell(one, "ls /grader")).exit_code != 0
    assert runtime.zygote_failure is None


async def test_members_end_with_their_zygote_and_the_next_fork_starts_another(
    runtime: ProcessRuntime,
) -> None:
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    others = children()
    made = await runtime.fork([spec(0), spec(1)])
    running = asyncio.ensure_future(shell(made[0], "setsid sleep 60"))
    await eventually(lambda: made[0].stats().pids >= 2)
    (waiter,) = children() - others
    before = {waiter, *descendants(waiter)}
    os.kill(waiter, signal.SIGKILL)
    with pytest.raises(SandboxError, match="lost"):
        await running
    await eventually(lambda: len(events) == 2)
    assert {one.kind for one in events} <= {EventKind.LOST, EventKind.EXITED}
    assert all(one.cause for one in events)
    assert runtime.keys() == ()
    (again,) = await runtime.fork([spec(0)])
    assert (await shell(again, "echo new")).stdout == b"new\n"
    assert alive(before) == set()


async def test_nothing_is_left_of_a_runtime_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib\n"
        "from tests.support.sandboxes import *\n"
        "async def main():\n"
        f"    async with process_runtime(pathlib.Path({str(tmp_path)!r})) as runtime:\n"
        "        made = await runtime.fork([spec(0), spec(1)])\n"
        "        await shell(made[0], 'setsid sleep 60 & echo')\n"
        "        print('up', flush=True)\n"
        "        await shell(made[1], 'sleep 60', timeout_s=60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        below = descendants(child.pid)
        assert len(below) >= 5
        child.kill()
    await eventually(lambda: alive(below) == set())


async def test_a_fork_that_is_given_up_leaves_nothing(
    runtime: ProcessRuntime,
) -> None:
    others = children()
    await runtime.fork([spec(9)])
    before = ours(others)
    for turns in range(6):
        forking = asyncio.ensure_future(runtime.fork([spec(index) for index in range(4)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        forking.cancel()
        await asyncio.wait({forking})
        assert runtime.keys() == (member(9),)
    await eventually(lambda: ours(others) == before)


async def test_nothing_inside_names_a_place_of_the_host(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    (made,) = await runtime.fork([spec()])
    seen = await shell(made, "cat /proc/1/cmdline /proc/1/environ /proc/mounts /proc/1/mountinfo")
    assert str(tmp_path).encode() not in seen.stdout


async def test_system_v_memory_is_bounded_without_being_mapped(runtime: ProcessRuntime) -> None:
    (made,) = await runtime.fork([spec(limits=SandboxLimits(memory_bytes=64 * MIB))])
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print([libc.shmget(0, ctypes.c_size_t(12 << 20), 0o1600) >= 0 for _ in range(3)])"
    )
    assert (await python(made, source)).stdout == b"[True, False, False]\n"


async def test_forks_that_are_given_up_at_any_moment_leave_nothing(runtime: ProcessRuntime) -> None:
    others = children()
    await runtime.fork([spec(9)])
    fds, processes = len(os.listdir("/proc/self/fd")), len(ours(others))
    for turn in range(40):
        asked = asyncio.ensure_future(runtime.fork([spec(0, turn)]))
        await asyncio.wait({asked}, timeout=turn / 4000)
        await runtime.destroy(member(0, turn))
        await asyncio.gather(asked, return_exceptions=True)
    await eventually(lambda: len(ours(others)) == processes)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) == fds)
    assert runtime.keys() == (member(9),)


async def test_a_fork_that_is_given_up_as_it_is_born_leaves_nothing(
    runtime: ProcessRuntime,
) -> None:
    others = children()
    await runtime.fork([spec(9)])
    zygote = runtime._zygote
    assert zygote is not None
    fds, processes = len(os.listdir("/proc/self/fd")), len(ours(others))

    def hear() -> None:
        zygote._hear()
        runtime._members[member()].cancel()

    asyncio.get_running_loop().add_reader(zygote._control, hear)
    with pytest.raises(ForkFailed):
        await runtime.fork([spec()])
    asyncio.get_running_loop().add_reader(zygote._control, zygote._hear)
    await eventually(lambda: len(ours(others)) == processes)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) == fds)
    assert runtime.keys() == (member(9),)
