"""What a `process` sandbox can and cannot reach. Every limit is tried from the inside."""

import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import Mount, Sandbox
from sandboxes.runtimes.process import ProcessRuntime
from tests.support.requirements import requires
from tests.support.sandboxes import member, process_runtime, python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ExecRequest, ExecResult, SandboxError, WriteRequest

pytestmark = requires("bwrap")

DISK = 8 << 20


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    async with process_runtime(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox(runtime: ProcessRuntime) -> Sandbox:
    limits = SandboxLimits(disk_bytes=DISK, pids_max=16, memory_bytes=128 << 20)
    (made,) = await runtime.fork([spec(limits=limits)])
    return made


async def test_there_is_no_network_but_an_unused_loopback(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import socket\nprint([name for _, name in socket.if_nameindex()])\n"
        "s = socket.socket()\ns.settimeout(1)\ns.connect(('127.0.0.1', 1))",
    )
    assert result.stdout == b"['lo']\n"
    assert b"Error" in result.stderr


async def test_no_file_of_this_machine_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    places = [str(secret), str(Path.home()), "/etc/shadow", "/var", "/home", "/run/user", "/sys"]
    result = await shell(sandbox, f"ls -d {' '.join(places)} 2>/dev/null")
    assert result.stdout == b""
    own = (await shell(sandbox, "cat /etc/passwd | wc -l; ls /work -A")).stdout
    assert own == b"1\n.tmp\n"


async def test_nothing_but_the_work_folder_can_be_written(sandbox: Sandbox) -> None:
    for place in ("/", "/usr", "/etc", "/dev", "/run", "/proc/sys/kernel"):
        assert (await shell(sandbox, f"touch {place}/x")).exit_code != 0, place
    assert (await shell(sandbox, "touch /work/x /tmp/x")).exit_code == 0


async def test_no_process_of_this_machine_is_seen(sandbox: Sandbox) -> None:
    result = await python(
        sandbox, "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()])"
    )
    assert len(result.stdout.split()) <= 3
    assert (await shell(sandbox, "hostname")).stdout == b"test-0\n"


async def test_there_are_no_rights_to_gain(sandbox: Sandbox) -> None:
    status = (
        await shell(sandbox, "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
    ).text
    assert status.split() == ["1000", "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    assert (await shell(sandbox, "unshare -U true")).exit_code != 0
    assert (await shell(sandbox, "mount -t tmpfs x /work")).exit_code != 0


async def test_nobody_inside_can_kill_the_agent(sandbox: Sandbox) -> None:
    await shell(sandbox, "kill -9 1; kill -9 -1")
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"


async def test_a_fork_bomb_ends_at_the_pids_limit(
    runtime: ProcessRuntime, sandbox: Sandbox
) -> None:
    bomb = (
        "import os, time\nn = 0\n"
        "try:\n"
        "    for _ in range(200):\n"
        "        if not os.fork():\n"
        "            time.sleep(30)\n"
        "            os._exit(0)\n"
        "        n += 1\n"
        "except OSError:\n"
        "    print(n)\n"
    )
    result = await python(sandbox, bomb)
    assert 0 < int(result.stdout) <= 16
    assert sandbox.stats().pids <= 16
    (other,) = await runtime.fork([spec(1)])
    assert (await shell(other, "echo fine")).stdout == b"fine\n"


async def test_limits_of_processes_hold_in_each_sandbox_alone(runtime: ProcessRuntime) -> None:
    limits = SandboxLimits(pids_max=8)
    made = await runtime.fork([spec(index, limits=limits) for index in range(4)])
    script = "for i in 1 2 3; do sleep 5 & done; echo started"
    results = [await shell(one, script) for one in made]
    assert [one.stdout for one in results] == [b"started\n"] * 4


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
async def test_the_disk_limit_holds(sandbox: Sandbox, place: str) -> None:
    script = f"for i in 1 2 3 4 5 6 7 8; do head -c {DISK // 2} /dev/zero > {place}/f$i; done"
    await shell(sandbox, script)
    used = int((await shell(sandbox, f"du -sb {place}/ | cut -f1")).stdout)
    assert used <= max(DISK, 16 << 20) + (64 << 10)
    assert (await python(sandbox, "print(1)")).stdout == b"1\n"


async def test_shared_memory_counts_as_memory(sandbox: Sandbox) -> None:
    source = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096):\n    m[i] = 1\n"
    with pytest.raises(SandboxError, match="out of memory"):
        await python(sandbox, source + "import time; time.sleep(30)")


async def test_two_gigabytes_of_output_on_both_streams_stay_out_of_memory(
    sandbox: Sandbox,
) -> None:
    total = 2 << 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = f"head -c {total} /dev/zero & head -c {total} /dev/zero >&2; wait"
    result = await shell(sandbox, script, timeout_s=60.0)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert not result.timed_out
    assert result.truncated_bytes == 2 * (total - (1 << 20))
    assert grown_kb < 64 << 10
    assert sandbox.stats().private_bytes < 64 << 20


async def test_a_mounted_folder_is_read_only(runtime: ProcessRuntime, tmp_path: Path) -> None:
    folder = tmp_path / "grader"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "tests.py").write_text("answer = 42\n")
    (folder / "link").symlink_to("/etc/shadow")
    (made,) = await runtime.fork([spec(mounts=(Mount(folder, "/grader"),))])
    result = await shell(
        made, "cat /grader/deep/tests.py; echo x > /grader/deep/tests.py; ls /grader"
    )
    assert result.text.startswith("answer = 42\n")
    assert b"Read-only file system" in result.stderr
    assert (folder / "deep" / "tests.py").read_text() == "answer = 42\n"


async def test_sixteen_forks_share_nothing_and_cost_little(runtime: ProcessRuntime) -> None:
    made = await runtime.fork([spec(index) for index in range(16)])
    for index, one in enumerate(made):
        await one.call(WriteRequest("mine", str(index).encode()))
    seen = [(await shell(one, "cat mine; echo; hostname")).text.split() for one in made]
    assert seen == [[str(index), f"test-{index}"] for index in range(16)]
    assert max(one.stats().private_bytes for one in made) < 16 << 20


async def test_the_whole_tree_is_gone_when_destroy_returns(
    runtime: ProcessRuntime, sandbox: Sandbox
) -> None:
    mark = f"300.{os.getpid()}"
    await shell(sandbox, f"setsid sleep {mark} & setsid sh -c 'sleep {mark} & sleep {mark}' &")
    await eventually(lambda: len(_processes(f"sleep\0{mark}")) == 3)
    await runtime.destroy(member())
    assert _processes(mark) == []


async def test_a_guest_that_babbles_is_cut_off(runtime: ProcessRuntime, sandbox: Sandbox) -> None:
    """Process 1 of the sandbox is as hostile as anything else in it: it may be traced and rewritten."""
    source = "import os\nfd = os.open('/proc/1/fd/0', os.O_WRONLY)\nos.write(fd, b'\\xff' * 64)\n"
    result = await python(sandbox, source)
    assert result.exit_code == 1  # a socket cannot be opened through /proc
    assert (await python(sandbox, "print(1)")).stdout == b"1\n"


async def test_an_ended_sandbox_is_forgotten_and_may_be_forked_again(
    runtime: ProcessRuntime, sandbox: Sandbox
) -> None:
    ended = runtime.get(member())
    assert ended is sandbox
    assert ended is not None
    ended.link.fail("test")
    await eventually(lambda: runtime.keys() == ())
    (again,) = await runtime.fork([spec()])
    result = await again.call(ExecRequest(("echo", "new")))
    assert isinstance(result, ExecResult)
    assert result.stdout == b"new\n"


def _processes(word: str) -> list[int]:
    """Processes of this machine whose command line holds a word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
