"""What a `process` sandbox can and cannot reach. Every limit is tried from the inside."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import Mount, Sandbox
from sandboxes.runtimes.process import ProcessRuntime
from tests.support.requirements import requires
from tests.support.sandboxes import member, process_runtime, python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ExecRequest, ExecResult, WriteRequest

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
