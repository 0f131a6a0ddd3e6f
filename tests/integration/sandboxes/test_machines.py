"""Machines of the `qemu` runtime: what clones share, what they must not, what they give back."""

import asyncio
import hashlib
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import EventKind, Isolation, Mount, SandboxEvent
from sandboxes.runtimes.qemu import QemuRuntime
from sandboxes.runtimes.qemu import runtime as runtime_module
from sandboxes.runtimes.qemu.machine import MIB
from sandboxes.runtimes.qemu.sandbox import QemuSandbox
from tests.support.requirements import requires
from tests.support.sandboxes import member, python, qemu_runtime, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ReadRequest, SandboxError, WriteRequest

pytestmark = [requires("qemu"), pytest.mark.slow]

PRIVATE_BYTES_MAX = 5 * MIB
"""What the issue allows a clone after its first command."""

IDENTITY = (
    "cat /proc/sys/kernel/random/uuid /etc/machine-id /proc/sys/kernel/random/boot_id; hostname"
)


@pytest.fixture
async def runtime() -> AsyncIterator[QemuRuntime]:
    """Machines of the user's own templates."""
    async with qemu_runtime() as made:
        yield made


def pid_of(sandbox: QemuSandbox) -> int:
    """Its QEMU process."""
    assert sandbox._vmm is not None
    return sandbox._vmm.pid


def proportional_bytes(sandboxes: Sequence[QemuSandbox]) -> int:
    """The kernel's own division of guest memory among those that map it, summed."""
    total = 0
    for sandbox in sandboxes:
        is_ram = False
        for line in Path(f"/proc/{pid_of(sandbox)}/smaps").read_text().splitlines():
            if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
                is_ram = line.split()[4] == str(sandbox._inode)
            elif is_ram and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def ram_digest(sandbox: QemuSandbox) -> str:
    """Of the memory file that all clones map: what is in it, and where it has holes."""
    digest, at = hashlib.sha256(), 0
    with sandbox.template.ram.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # nothing but a hole is left
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            digest.update(b"%d-%d;" % (start, at))
            for place in range(start, at, MIB):
                digest.update(os.pread(file.fileno(), min(MIB, at - place), place))
    return digest.hexdigest()


async def test_clones_share_the_snapshot_and_pay_for_what_they_write(runtime: QemuRuntime) -> None:
    per_clone = []
    for count in (1, 3, 6):
        clones = await runtime.fork([spec(index) for index in range(count)])
        for clone in clones:
            assert (await shell(clone, "echo first")).stdout == b"first\n"
        per_clone.append(proportional_bytes(clones) / count)
    for clone in clones:
        held = clone.stats()
        assert 0 < held.private_bytes < PRIVATE_BYTES_MAX
        assert held.shared_bytes > held.private_bytes
        assert held.overhead_bytes > 0
    assert per_clone[0] > per_clone[1] > per_clone[2]
    assert runtime.capabilities().isolation is Isolation.VM


async def test_clones_are_no_twins(runtime: QemuRuntime) -> None:
    clones = await runtime.fork([spec(index) for index in range(4)])
    told = [(await shell(clone, IDENTITY)).stdout.split() for clone in clones]
    assert all(len(words) == 4 for words in told)
    for values in zip(*told, strict=True):
        assert len(set(values)) == len(clones)
    drawn = [
        (await python(clone, "import random\nprint(random.random())")).stdout for clone in clones
    ]
    assert len(set(drawn)) == len(clones)


async def test_the_clock_of_a_clone_is_the_hosts_also_after_a_pause(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec()])
    ask = "import time\nprint(time.time())"
    assert abs(float((await python(clone, ask)).stdout) - time.time()) < 1
    await runtime.pause(member())
    held = asyncio.ensure_future(python(clone, ask))
    await asyncio.wait({held}, timeout=2.5)
    await runtime.resume(member())
    told = float((await held).stdout)
    assert abs(told - time.time()) < 1


async def test_a_seed_and_the_limits_reach_a_warm_interpreter(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec(7, limits=SandboxLimits(pids_max=20))])
    seed = await python(clone, "import os\nprint(os.environ['VENUS_SEED'])")
    assert seed.stdout == b"7\n"
    bomb = "import os, time\nfor _ in range(40):\n    if not os.fork():\n        time.sleep(60)\n"
    assert b"BlockingIOError" in (await python(clone, bomb)).stderr
    assert (await python(clone, "print(1)", timeout_s=30)).stdout == b"1\n"


async def test_what_one_clone_writes_no_other_sees(runtime: QemuRuntime) -> None:
    first, second = await runtime.fork([spec(0), spec(1)])
    frozen = ram_digest(first)
    await python(first, "x = bytearray(b'mark' * 1000000)")
    await first.call(WriteRequest("mark", b"mark" * 1000))
    assert b"NameError" in (await python(second, "x")).stderr
    with pytest.raises(SandboxError, match="not_found"):
        await second.call(ReadRequest("mark"))
    assert ram_digest(first) == frozen


async def test_freed_memory_goes_back_and_leaves_the_snapshot_whole(runtime: QemuRuntime) -> None:
    limits = SandboxLimits(disk_bytes=128 * MIB)
    first, second = await runtime.fork([spec(0, limits=limits), spec(1, limits=limits)])
    frozen = ram_digest(first)
    await shell(first, "head -c 100000000 /dev/zero > large", timeout_s=60)
    assert first.stats().private_bytes > 95 * MIB
    await shell(first, "rm large")
    await eventually(lambda: first.stats().private_bytes < 30 * MIB, deadline=30)
    assert ram_digest(first) == frozen
    assert (await python(second, "import json\nprint(json.dumps([1]))")).stdout == b"[1]\n"


async def test_a_balloon_takes_back_what_reporting_cannot(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec()])
    frozen = ram_digest(clone)
    # Every second page is freed: nothing of it is a piece large enough to be reported.
    source = """
        import mmap
        pages = [mmap.mmap(-1, 4096) for _ in range(8000)]
        for page in pages: page[:1] = b'x'
        del pages[::2]
    """
    assert (await python(clone, textwrap.dedent(source), timeout_s=60)).exit_code == 0
    before = clone.stats().private_bytes
    given = await runtime.reclaim(member(), 8 * MIB)
    assert given >= 4 * MIB
    assert clone.stats().private_bytes <= before - 4 * MIB
    assert (await python(clone, "print(sum(p[0] for p in pages))", timeout_s=60)).stdout == (
        b"%d\n" % (4000 * ord("x"))
    )
    assert ram_digest(clone) == frozen


async def test_ten_pauses_keep_every_byte(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec()])
    content = os.urandom(3_000_000)
    await clone.call(WriteRequest("kept", content))
    await python(clone, "import hashlib\nx = open('kept', 'rb').read()")
    for _ in range(10):
        await runtime.pause(member())
        await runtime.reclaim(member(), 1 << 30)
        await runtime.resume(member())
    assert await clone.call(ReadRequest("kept")) == content
    digest = (await python(clone, "print(hashlib.sha256(x).hexdigest())")).stdout.strip()
    assert digest.decode() == hashlib.sha256(content).hexdigest()


async def test_a_paused_machine_uses_no_cpu(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec()])
    await shell(clone, "while :; do :; done & echo busy")
    await runtime.pause(member())
    before = cpu_ticks(pid_of(clone))
    held = asyncio.ensure_future(shell(clone, "echo on"))
    await asyncio.wait({held}, timeout=1.0)
    assert not held.done()
    assert cpu_ticks(pid_of(clone)) - before <= 10
    await runtime.resume(member())
    assert (await held).stdout == b"on\n"


def cpu_ticks(pid: int) -> int:
    """Time a process has used, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_a_machine_that_crashes_is_lost(runtime: QemuRuntime) -> None:
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    first, second = await runtime.fork([spec(0), spec(1)])
    running = asyncio.ensure_future(shell(first, "sleep 30"))
    await asyncio.sleep(0)
    os.kill(pid_of(first), signal.SIGKILL)
    with pytest.raises(SandboxError, match="signal 9") as lost:
        await running
    assert lost.value.reason == "lost"
    assert [(one.key, one.kind) for one in events] == [(member(0), EventKind.LOST)]
    assert runtime.keys() == (member(1),)
    assert (await shell(second, "echo alive")).stdout == b"alive\n"


async def test_a_guest_without_memory_ends_as_out_of_memory(
    runtime: QemuRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine smaller than its ceilings: its own kernel comes to the end before the host's watch.
    monkeypatch.setattr(runtime_module, "ram_bytes_for", lambda memory, disk: 384 * MIB)
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    (clone,) = await runtime.fork([spec()])
    eat = "import os, time\nfor _ in range(8):\n    if not os.fork():\n        x = b'x' * (60 << 20)\n"
    with pytest.raises(SandboxError, match="out of memory: the guest's kernel"):
        await python(clone, eat + "        time.sleep(30)\ntime.sleep(30)", timeout_s=50)
    assert [one.kind for one in events] == [EventKind.OOM]


@pytest.mark.parametrize(
    "attempt",
    [
        "touch /x", "touch /etc/x", "echo x > /venus/warm.pyc", "head -c 1 /dev/mem", "kill -9 1",
        "mount -t tmpfs x /work", "unshare -U true", "ls /sys", "cat /proc/1/environ",
        "echo c > /proc/sysrq-trigger", "reboot -f", "cat /dev/vport0p1",
    ],
)  # fmt: skip
async def test_the_guests_user_can_do_nothing_to_its_machine(
    runtime: QemuRuntime, attempt: str
) -> None:
    (clone,) = await runtime.fork([spec()])
    assert (await shell(clone, attempt)).exit_code != 0
    rights = await shell(clone, "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
    nothing = "0" * 16
    assert rights.text.split() == [
        "1000", "CapEff:", nothing, "CapBnd:", nothing, "NoNewPrivs:", "1"
    ]  # fmt: skip


async def test_there_is_no_network_but_loopback(runtime: QemuRuntime) -> None:
    (clone,) = await runtime.fork([spec()])
    names = await python(clone, "import socket\nprint([n for _, n in socket.if_nameindex()])")
    assert names.stdout == b"['lo']\n"


async def test_a_mounted_folder_is_there_and_read_only(
    runtime: QemuRuntime, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "one.py").write_bytes(b"print('one')\n")
    (clone,) = await runtime.fork([spec(mounts=(Mount(tmp_path, "/grader"),))])
    result = await shell(clone, "cat /grader/tests/one.py; echo x > /grader/tests/one.py")
    assert result.stdout == b"print('one')\n"
    assert result.exit_code != 0


async def test_no_machine_outlives_its_node_agent(tmp_path: Path) -> None:
    code = """
        import asyncio
        from tests.support.sandboxes import qemu_runtime, spec
        from tests.integration.sandboxes.test_machines import pid_of

        async def main():
            async with qemu_runtime() as runtime:
                clones = await runtime.fork([spec(0), spec(1)])
                print(*(pid_of(clone) for clone in clones), flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(code), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    pids: list[int] = []
    while not pids:
        line = await child.stdout.readline()
        assert line, "the node agent ended by itself"
        pids = [int(word) for word in line.split() if line.strip().replace(b" ", b"").isdigit()]
    child.kill()
    await child.wait()
    await eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
