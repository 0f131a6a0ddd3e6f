"""Pausing keeps everything, stops everything, and charges nobody for it."""

import asyncio
import hashlib

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import Runtime, Sandbox, SandboxEvent
from tests.support.sandboxes import member, python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ReadRequest, SandboxError, WriteRequest

CYCLES = 10

UNTIL_IT_RUNS = "until [ -s ticks ]; do sleep 0.01; done"


@pytest.fixture
async def sandbox(runtime: Runtime) -> Sandbox:
    if not runtime.capabilities().pause:
        pytest.skip("this runtime cannot pause")
    (made,) = await runtime.fork([spec(limits=SandboxLimits(disk_bytes=32 << 20))])
    return made


async def count(sandbox: Sandbox) -> int:
    """How far the counting process is."""
    return int((await shell(sandbox, "wc -c < ticks")).stdout)


async def grown(sandbox: Sandbox, before: int) -> bool:
    """Whether it has counted on since."""
    return await count(sandbox) > before


async def test_ten_cycles_of_pause_and_resume_keep_every_byte(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    content = bytes(range(256)) * 4096
    await sandbox.call(WriteRequest("deep/file", content))
    await shell(sandbox, "head -c 4000000 /dev/urandom > random; sha256sum random > sum")
    await python(sandbox, "import hashlib, os\nheld = os.urandom(8 << 20)\nturns = 0")
    digest = (await python(sandbox, "print(hashlib.sha256(held).hexdigest())")).stdout
    for turn in range(CYCLES):
        await runtime.pause(member())
        await runtime.reclaim(member(), 64 << 20)
        await runtime.resume(member())
        await python(sandbox, "turns += 1")
        await shell(sandbox, f"echo {turn} >> turns")
    assert await sandbox.call(ReadRequest("deep/file")) == content
    assert (await shell(sandbox, "sha256sum -c sum")).exit_code == 0
    assert (await python(sandbox, "print(hashlib.sha256(held).hexdigest())")).stdout == digest
    assert (await python(sandbox, "print(turns)")).stdout == b"10\n"
    assert (await shell(sandbox, "cat turns")).text.split() == [str(one) for one in range(CYCLES)]


async def test_a_change_just_before_a_pause_is_there_after_it(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    for turn in range(3):
        content = hashlib.sha256(bytes([turn])).digest()
        written = asyncio.ensure_future(sandbox.call(WriteRequest("file", content)))
        await asyncio.sleep(0)
        await runtime.pause(member())
        await runtime.resume(member())
        await written
        assert await sandbox.call(ReadRequest("file")) == content


async def test_nothing_runs_while_it_is_paused(runtime: Runtime, sandbox: Sandbox) -> None:
    await shell(
        sandbox, f"(while :; do printf x >> ticks; done) > /dev/null 2>&1 & {UNTIL_IT_RUNS}"
    )
    before = await count(sandbox)
    await runtime.pause(member())
    # The reading arrives while all stand still: the counter may move only once it is answered.
    held = asyncio.ensure_future(count(sandbox))
    done, _ = await asyncio.wait({held}, timeout=0.3)
    assert not done
    await runtime.resume(member())
    assert await held >= before
    await eventually(lambda: grown(sandbox, before))


async def test_time_in_a_pause_is_not_charged_to_a_call(runtime: Runtime, sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(
        python(sandbox, "import time\ntime.sleep(0.2)\nprint('done')", timeout_s=2.5)
    )
    await asyncio.sleep(0)
    await runtime.pause(member())
    await asyncio.wait({running}, timeout=4.0)
    assert not running.done()
    await runtime.resume(member())
    result = await running
    assert (result.stdout, result.timed_out) == (b"done\n", False)


async def test_pausing_twice_is_pausing_and_a_running_one_may_be_resumed(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    await runtime.resume(member())
    await asyncio.gather(*(runtime.pause(member()) for _ in range(3)))
    await runtime.resume(member())
    assert (await shell(sandbox, "echo on")).stdout == b"on\n"


async def test_a_process_that_stopped_itself_stays_stopped(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    await shell(
        sandbox,
        "sleep 300 & echo $! > pid; kill -STOP $!; until grep -q ') T ' /proc/$!/stat; do :; done",
    )
    await runtime.pause(member())
    await runtime.resume(member())
    state = await shell(sandbox, "sed 's/.*) //' /proc/$(cat pid)/stat | cut -c1")
    assert state.stdout == b"T\n"


async def test_many_processes_that_fork_stand_still_together(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    await shell(
        sandbox,
        "for i in 1 2 3; do (while :; do /bin/true; printf x >> ticks; done) & done 2>&1 >/dev/null; "
        f"{UNTIL_IT_RUNS}",
    )
    for _ in range(5):
        await runtime.pause(member())
        await runtime.resume(member())
    assert await count(sandbox) > 0


async def test_a_paused_sandbox_can_be_destroyed(runtime: Runtime, sandbox: Sandbox) -> None:
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    await runtime.pause(member())
    waiting = asyncio.ensure_future(shell(sandbox, "true"))
    await asyncio.sleep(0)
    await runtime.destroy(member())
    with pytest.raises(SandboxError, match="lost"):
        await waiting
    assert (runtime.keys(), events) == ((), [])


async def test_a_neighbour_of_a_paused_one_works(runtime: Runtime, sandbox: Sandbox) -> None:
    (other,) = await runtime.fork([spec(1)])
    await runtime.pause(member())
    assert (await shell(other, "echo fine")).stdout == b"fine\n"
    (third,) = await runtime.fork([spec(2)])
    assert (await python(third, "print(3)")).stdout == b"3\n"


async def test_a_key_without_a_sandbox_is_lost(runtime: Runtime, sandbox: Sandbox) -> None:
    await runtime.destroy(member())
    for asked in (
        runtime.pause(member()),
        runtime.resume(member()),
        runtime.reclaim(member(), 1),
    ):
        with pytest.raises(SandboxError) as lost:
            await asked
        assert lost.value.reason == "lost"


async def test_where_pages_cannot_be_moved_nothing_is_said_to_be_free(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    await python(sandbox, "held = bytes(range(256)) * (64 << 10)")
    await runtime.pause(member())
    freed = await runtime.reclaim(member(), 8 << 20)
    await runtime.resume(member())
    assert (freed > 0) <= runtime.capabilities().page_out
    assert (await python(sandbox, "print(len(held), held[-1])")).stdout == b"16777216 255\n"
