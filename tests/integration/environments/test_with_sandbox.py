"""calc in real sandboxes: its cases, and the trace that its tool leaves there."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from environments.checks import check_package
from sandboxes.ports import Sandbox, SandboxSpec
from sandboxes.runtimes.process.runtime import ProcessRuntime
from tests.integration.environments.helpers import ADD, CALC, TASK, running
from tests.support.requirements import requires
from tests.support.waiting import eventually
from venusrl.env.host.ports import InstanceKey
from venusrl.env.messages import Message
from venusrl.env.sandbox import CallKey, ReadRequest, SandboxRequest, SandboxResult
from workers.chores.case_sandboxes import CaseSandboxes

pytestmark = requires("bwrap")


class RuntimePort:
    """A runtime's sandbox as an environment's port."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        return await self.sandbox.call(request)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    one = ProcessRuntime(tmp_path / "guest")
    yield one
    await one.close()


async def fork(runtime: ProcessRuntime, index: int) -> RuntimePort:
    key = MemberKey(AttemptId("att_1"), GroupId("grp_1"), index, 1, SandboxPurpose.AGENT)
    (sandbox,) = await runtime.fork([SandboxSpec(key, "box", 1, SandboxLimits())])
    return RuntimePort(sandbox)


async def test_the_cases_of_calc_hold_in_real_sandboxes(runtime: ProcessRuntime) -> None:
    report = await check_package(CALC, {}, CaseSandboxes(runtime, CALC))
    assert report.findings == ()
    assert report.cases == 5
    assert runtime.keys() == ()


async def test_the_tools_trace_in_the_sandbox_equals_the_trajectory(
    runtime: ProcessRuntime,
) -> None:
    port = await fork(runtime, 0)
    async with running(CALC) as environment:
        key = InstanceKey("ro_1", 1)
        await environment.open(key, TASK, 0, port)
        await environment.setup(key)
        for turn in range(3):
            seen = await environment.reply(key, turn, ADD)
            assert seen.messages == (Message("tool", "19", tool_call_id="c1"),)
    trace = await port.sandbox.call(ReadRequest("calls.jsonl"))
    assert isinstance(trace, bytes)
    calls = [json.loads(line) for line in trace.splitlines()]
    assert calls == [{"expression": "12+07", "result": "19"}] * 3


PARENT = """
import asyncio, sys
from pathlib import Path
from venusrl.env.host.manifest import read_manifest
from venusrl.env.host.process import start_environment

async def main():
    folder = Path(sys.argv[1])
    environment = await start_environment(folder, read_manifest(folder), {})
    print(environment.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_an_environment_process_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(CALC), stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    inside = children(pid)
    assert inside
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await eventually(lambda: not any(is_alive(one) for one in (pid, *inside)))


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, found) for one in (child, *children(child))]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
