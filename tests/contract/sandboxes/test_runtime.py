"""What every sandbox runtime must do; one more runtime is one more parameter."""

import asyncio

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.ports import EventKind, Runtime, SandboxEvent
from tests.support.sandboxes import member, python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    ExecRequest,
    ExecResult,
    ReadRequest,
    SandboxError,
    WriteRequest,
)


async def test_the_same_member_is_one_sandbox(runtime: Runtime) -> None:
    (first,) = await runtime.fork([spec(0)])
    second, other = await runtime.fork([spec(0), spec(1)])
    assert first is second
    assert other is not first
    assert set(runtime.keys()) == {member(0), member(1)}


async def test_concurrent_forks_of_one_member_make_one_sandbox(runtime: Runtime) -> None:
    made = await asyncio.gather(*(runtime.fork([spec(0)]) for _ in range(5)))
    assert len({id(one) for (one,) in made}) == 1
    assert runtime.keys() == (member(0),)


async def test_another_try_is_another_sandbox(runtime: Runtime) -> None:
    (first,) = await runtime.fork([spec(0, 1)])
    await first.call(WriteRequest("mark", b"1"))
    (second,) = await runtime.fork([spec(0, 2)])
    with pytest.raises(SandboxError, match="not_found"):
        await second.call(ReadRequest("mark"))


async def test_names_live_from_one_python_call_to_the_next(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    await python(sandbox, "import math\nx = math.factorial(5)")
    assert (await python(sandbox, "print(x + 1)")).stdout == b"121\n"


async def test_an_exception_is_exit_code_one_with_its_traceback(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await python(sandbox, "print('before')\n1 / 0")
    assert (result.exit_code, result.stdout) == (1, b"before\n")
    assert b"ZeroDivisionError" in result.stderr
    assert b"agent" not in result.stderr


@pytest.mark.parametrize(
    ("source", "code"),
    [("import sys; sys.exit(3)", 3), ("import sys; sys.exit('bye')", 1), ("exit_code = 0", 0)],
)
async def test_an_exit_of_the_source_is_its_exit_code(
    runtime: Runtime, source: str, code: int
) -> None:
    (sandbox,) = await runtime.fork([spec()])
    assert (await python(sandbox, source)).exit_code == code


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.closerange(3, 100)",
        "import os; os.closerange(0, 100)",
    ],
)
async def test_code_that_breaks_the_interpreter_costs_its_names_only(
    runtime: Runtime, source: str
) -> None:
    (sandbox,) = await runtime.fork([spec()])
    await python(sandbox, "x = 1")
    assert (await python(sandbox, source)).exit_code != 0
    assert b"NameError" in (await python(sandbox, "x")).stderr
    assert (await python(sandbox, "print(2)")).stdout == b"2\n"


async def test_a_fork_that_user_code_forgot_answers_nothing(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    assert (await python(sandbox, "import os\npid = os.fork()\n")).exit_code == 0
    assert (await python(sandbox, "print(pid > 0)")).stdout == b"True\n"


async def test_python_that_never_ends_is_timed_out_and_the_sandbox_lives(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    source = "while True:\n    try:\n        pass\n    except BaseException:\n        pass\n"
    assert (await python(sandbox, source, timeout_s=0.3)).timed_out
    assert (await python(sandbox, "print(3)")).stdout == b"3\n"


async def test_a_command_and_its_children_die_at_its_timeout(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await shell(sandbox, "sleep 60 & sleep 60", timeout_s=0.3)
    assert result.timed_out
    left = await shell(sandbox, "cat /proc/[0-9]*/stat | grep -v ' Z ' | grep -c '(sleep)'")
    assert left.stdout.strip() == b"0"


async def test_what_a_command_forks_while_it_is_killed_dies_too(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    for _ in range(5):
        forking = "for n in 1 2 3; do (while :; do sleep 60 & sleep 0.01; done) & done; wait"
        assert (await shell(sandbox, forking, timeout_s=0.2)).timed_out
        left = await shell(sandbox, "cat /proc/[0-9]*/stat | grep -v ' Z ' | grep -c '(sleep)'")
        assert left.stdout.strip() == b"0"


async def test_a_background_process_does_not_hold_its_command(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await shell(sandbox, "sleep 30 & echo started", timeout_s=10.0)
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"started\n", False)


async def test_input_of_a_command_arrives_whole(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    text = bytes(range(256)) * 4096
    result = await sandbox.call(ExecRequest(("wc", "-c"), stdin=text))
    assert isinstance(result, ExecResult)
    assert int(result.stdout) == len(text)


async def test_a_command_that_reads_no_input_ends(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await sandbox.call(ExecRequest(("true",), stdin=b"x" * (1 << 20)))
    assert isinstance(result, ExecResult)
    assert result.exit_code == 0


async def test_a_program_that_does_not_exist_is_exit_code_127(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await sandbox.call(ExecRequest(("no-such-program",)))
    assert isinstance(result, ExecResult)
    assert result.exit_code == 127
    assert b"No such file" in result.stderr


async def test_a_signal_is_128_and_its_number(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    assert (await shell(sandbox, "kill -9 $$")).exit_code == 137


async def test_raw_bytes_come_back_as_they_are(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await shell(sandbox, r"printf '\360\377'; printf '\200' >&2")
    assert (result.stdout, result.stderr) == (b"\xf0\xff", b"\x80")
    assert result.text == "\ufffd\ufffd"


async def test_a_character_across_a_chunk_border_is_whole(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    result = await python(sandbox, "print('x' * 65535 + '\N{EURO SIGN}' * 10, end='')")
    assert result.text == "x" * 65535 + "\N{EURO SIGN}" * 10


async def test_output_beyond_the_limit_is_counted_on_both_streams(runtime: Runtime) -> None:
    limits = SandboxLimits(output_bytes_max=1000)
    (sandbox,) = await runtime.fork([spec(limits=limits)])
    result = await shell(sandbox, "head -c 5000 /dev/zero; head -c 3000 /dev/zero >&2")
    assert (len(result.stdout), len(result.stderr)) == (1000, 1000)
    assert result.truncated_bytes == 4000 + 2000
    again = await python(sandbox, "print('y' * 1999)")
    assert (len(again.stdout), again.truncated_bytes) == (1000, 1000)


async def test_a_file_comes_back_as_it_was_written(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    content = bytes(range(256)) * 1000
    await sandbox.call(WriteRequest("a/b/c.bin", content))
    await sandbox.call(WriteRequest("a/b/c.bin", content[:-1]))
    assert await sandbox.call(ReadRequest("/work/a/b/c.bin")) == content[:-1]


@pytest.mark.parametrize(
    "path",
    ["link", "pipe", "/proc/self/environ", "../etc/passwd", "folder", "up/environ", "/etc/x"],
)
async def test_only_regular_files_of_the_work_folder_are_read(runtime: Runtime, path: str) -> None:
    (sandbox,) = await runtime.fork([spec()])
    await shell(
        sandbox, "ln -s /proc/self/environ link; mkfifo pipe; mkdir folder; ln -s /proc/1 up"
    )
    with pytest.raises(SandboxError) as refused:
        await sandbox.call(ReadRequest(path))
    assert refused.value.reason == "denied"


@pytest.mark.parametrize("path", ["link", "pipe", "../../etc/passwd", "folder", "/dev/shm/x"])
async def test_only_regular_files_of_the_work_folder_are_written(
    runtime: Runtime, path: str
) -> None:
    (sandbox,) = await runtime.fork([spec()])
    await shell(sandbox, "ln -s /work/target link; mkfifo pipe; mkdir folder; touch target")
    with pytest.raises(SandboxError) as refused:
        await sandbox.call(WriteRequest(path, b"x"))
    assert refused.value.reason == "denied"
    assert (await shell(sandbox, "wc -c < target")).stdout.strip() == b"0"


async def test_a_file_that_is_missing_or_too_large_says_so(runtime: Runtime) -> None:
    limits = SandboxLimits(disk_bytes=32 << 20)
    (sandbox,) = await runtime.fork([spec(limits=limits)])
    await shell(sandbox, f"head -c {FILE_BYTES_MAX + 1} /dev/zero > large")
    for path, reason in (("missing", "not_found"), ("large", "too_large")):
        with pytest.raises(SandboxError) as refused:
            await sandbox.call(ReadRequest(path))
        assert refused.value.reason == reason


async def test_a_destroyed_sandbox_is_lost_for_every_caller(runtime: Runtime) -> None:
    (sandbox,) = await runtime.fork([spec()])
    running = asyncio.ensure_future(shell(sandbox, "sleep 30"))
    await runtime.destroy(member())
    for call in (running, sandbox.call(ReadRequest("x"))):
        with pytest.raises(SandboxError) as lost:
            await call
        assert lost.value.reason == "lost"
    assert runtime.get(member()) is None
    await runtime.destroy(member())


async def test_destroying_on_purpose_is_no_event(runtime: Runtime) -> None:
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    await runtime.fork([spec(0), spec(1)])
    await runtime.destroy(member(0))
    await runtime.close()
    assert events == []


async def test_a_sandbox_that_eats_memory_ends_as_out_of_memory(runtime: Runtime) -> None:
    events: list[SandboxEvent] = []
    runtime.listen(events.append)
    limits = SandboxLimits(memory_bytes=64 << 20)
    (sandbox,) = await runtime.fork([spec(limits=limits)])
    # Each process stays below its own limit; their sum does not.
    eat = "import os, time\nfor _ in range(4):\n    if not os.fork():\n        x = b'x' * (40 << 20)\n"
    with pytest.raises(SandboxError, match="out of memory"):
        await python(sandbox, eat + "        time.sleep(60)\ntime.sleep(60)", timeout_s=60.0)
    await eventually(lambda: events)
    assert [(one.key, one.kind) for one in events] == [(member(), EventKind.OOM)]
    assert runtime.keys() == ()


async def test_one_process_above_the_limit_fails_by_itself(runtime: Runtime) -> None:
    limits = SandboxLimits(memory_bytes=64 << 20)
    (sandbox,) = await runtime.fork([spec(limits=limits)])
    result = await python(sandbox, "x = b'x' * (200 << 20)")
    assert b"MemoryError" in result.stderr
    assert (await python(sandbox, "print(1)")).stdout == b"1\n"
