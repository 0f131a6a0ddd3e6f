"""Sandboxes of an author's machine: the same answers confined and plain."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.requirements import requires
from tests.support.waiting import eventually
from venusrl.env.host.ports import InstanceKey, SandboxPort
from venusrl.env.local.machine import LocalSandboxes, local_machine
from venusrl.env.local.sandbox import LocalSandbox
from venusrl.env.messages import Rollout, Task
from venusrl.env.sandbox import (
    OUTPUT_BYTES_MAX,
    CallKey,
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    SandboxRequest,
    WriteRequest,
)

KEY = CallKey("r", 1, 0, 0)


@pytest.fixture(params=["plain", pytest.param("confined", marks=requires("bwrap"))])
def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalSandboxes]:
    with local_machine(plain=request.param == "plain") as machine:
        yield machine.sandboxes(tmp_path)


@pytest.fixture
async def box(sandboxes: LocalSandboxes) -> AsyncIterator[SandboxPort]:
    async with sandboxes.agent(InstanceKey("r", 1)) as port:
        yield port


async def ran(box: SandboxPort, request: SandboxRequest) -> ExecResult:
    result = await box.call(KEY, request)
    assert isinstance(result, ExecResult)
    return result


async def sh(box: SandboxPort, script: str, timeout_s: float = 20.0) -> ExecResult:
    return await ran(box, ExecRequest(("sh", "-c", script), timeout_s=timeout_s))


async def test_a_command_gives_its_streams_and_its_exit_code(box: SandboxPort) -> None:
    result = await ran(box, ExecRequest(("sh", "-c", "cat; echo b >&2; exit 3"), stdin=b"a"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"a", b"b\n")


async def test_files_live_on_between_calls(box: SandboxPort) -> None:
    await box.call(KEY, WriteRequest("a/b.txt", b"\xff\x00"))
    assert (await sh(box, "wc -c < a/b.txt; echo x > c")).stdout.strip() == b"2"
    assert await box.call(KEY, ReadRequest("c")) == b"x\n"


async def test_the_interpreter_keeps_its_names_and_says_what_failed(box: SandboxPort) -> None:
    assert (await ran(box, PythonRequest("x = 20"))).exit_code == 0
    assert (await ran(box, PythonRequest("print(x + 1)"))).stdout == b"21\n"
    failed = await ran(box, PythonRequest("1 / 0"))
    assert failed.exit_code == 1
    assert b"ZeroDivisionError" in failed.stderr


async def test_an_interpreter_that_dies_costs_its_names_only(box: SandboxPort) -> None:
    await ran(box, PythonRequest("x = 1"))
    died = await ran(box, PythonRequest("import os; os._exit(7)"))
    assert died.exit_code != 0
    assert b"names are lost" in died.stderr
    assert b"NameError" in (await ran(box, PythonRequest("x"))).stderr


async def test_time_limits_end_commands_and_sources(box: SandboxPort) -> None:
    assert (await sh(box, "sleep 60", 0.3)).timed_out
    assert (await ran(box, PythonRequest("while True: pass", timeout_s=0.3))).timed_out
    assert (await ran(box, PythonRequest("print(1)"))).stdout == b"1\n"


async def test_a_cancelled_call_ends_what_it_started(box: SandboxPort) -> None:
    source = "import time; open('began', 'w').close(); time.sleep(61)"
    command = ExecRequest(("sh", "-c", "touch began; sleep 61"))
    for request in (command, PythonRequest(source)):
        running = asyncio.create_task(box.call(KEY, request))
        await eventually(lambda: began(box))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await sh(box, "rm began")).exit_code == 0
    assert (await ran(box, PythonRequest("print(1)"))).stdout == b"1\n"


def began(box: SandboxPort) -> bool:
    """Whether a call has begun: others wait for it, so the folder is looked at from outside."""
    assert isinstance(box, LocalSandbox)
    return (box.shell.folder / "began").exists()


async def test_output_beyond_the_cap_is_counted_not_kept(box: SandboxPort) -> None:
    size = OUTPUT_BYTES_MAX + 1000
    result = await sh(box, f"head -c {size} /dev/zero")
    assert (len(result.stdout), result.truncated_bytes) == (OUTPUT_BYTES_MAX, 1000)


async def test_an_unknown_program_is_an_exit_code(box: SandboxPort) -> None:
    result = await ran(box, ExecRequest(("no-such-program",)))
    assert result.exit_code != 0
    assert b"no-such-program" in result.stderr


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x"])
async def test_file_calls_stay_in_the_work_folder(box: SandboxPort, path: str) -> None:
    with pytest.raises(SandboxError) as caught:
        await box.call(KEY, ReadRequest(path))
    assert caught.value.reason in ("denied", "not_found")


async def test_a_link_is_no_file(box: SandboxPort) -> None:
    await sh(box, "ln -s /etc/hostname link")
    with pytest.raises(SandboxError, match="denied"):
        await box.call(KEY, ReadRequest("link"))


async def test_no_variable_of_the_users_shell_reaches_a_tool(
    box: SandboxPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_secret")
    assert b"vrl_secret" not in (await sh(box, "env")).stdout


async def test_a_grading_sandbox_has_artefacts_and_grader(
    sandboxes: LocalSandboxes, tmp_path: Path
) -> None:
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "hidden").write_text("key")
    rollout = Rollout("r", 0, Task("t", ()), (), "done", 1, artefacts={"a/b": "mine"})
    async with sandboxes.grader([rollout]) as port:
        result = await sh(port, 'cat a/b "$VENUS_GRADER/hidden"')
    assert result.stdout == b"minekey"


@requires("bwrap")
async def test_a_confined_grader_folder_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "grader").mkdir()
    rollout = Rollout("r", 0, Task("t", ()), (), "done", 1)
    with local_machine() as machine:
        async with machine.sandboxes(tmp_path).grader([rollout]) as port:
            assert (await sh(port, "touch /grader/x")).exit_code != 0
    assert list((tmp_path / "grader").iterdir()) == []


@requires("bwrap")
async def test_confined_tools_reach_no_network_no_home_and_no_grader(tmp_path: Path) -> None:
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "hidden").write_text("key")
    with socket.create_server(("127.0.0.1", 0)) as server, local_machine() as machine:
        port = server.getsockname()[1]
        async with machine.sandboxes(tmp_path).agent(InstanceKey("r", 1)) as box:
            dial = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
            assert (await ran(box, PythonRequest(dial))).exit_code == 1
            for path in (tmp_path / "grader/hidden", "/grader", __file__, "/home", "/etc/passwd"):
                assert (await sh(box, f"ls {path}")).exit_code != 0
