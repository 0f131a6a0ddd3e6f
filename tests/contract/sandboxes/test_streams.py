"""Programs that are read, fed and signalled as they go, on every runtime."""

import asyncio
import re
import signal
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.commands import COMMANDS_MAX, WINDOW_BYTES, Command, ProcessEnd, StreamName
from sandboxes.files import StatRequest
from sandboxes.ports import Isolation, Runtime, Sandbox
from tests.support.sandboxes import drained, heard, member, python, script, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ExecRequest, SandboxError, WriteRequest

FLOOD = "while :; do head -c 65536 /dev/zero; echo x >> /work/rounds; done"

SLEEPERS = "cat /proc/[0-9]*/stat | grep -v ' Z ' | grep -c '(sleep)'"


@pytest.fixture
async def sandbox(runtime: Runtime) -> Sandbox:
    (made,) = await runtime.fork([spec()])
    return made


async def test_chunks_come_while_the_program_runs(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("echo first; read word; echo $word >&2; exit 3"))
    assert process.pid > 1
    first = await process.read()
    assert first is not None
    assert (first.stream, first.content) == (StreamName.STDOUT, b"first\n")
    await process.write(b"second\n")
    assert await drained(process) == (b"", b"second\n", ProcessEnd(3))


async def test_input_comes_in_pieces_and_ends(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("wc", "-c")))
    for size in (1, 70_000, 600_000, 0, 29):
        await process.write(b"x" * size)
    process.close_input()
    out, _, end = await drained(process)
    assert (int(out), end) == (670_030, ProcessEnd(0))
    with pytest.raises(SandboxError, match="refused"):
        await process.write(b"more")


async def test_input_that_nobody_reads_waits_and_is_dropped_at_the_end(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("echo ready; exec sleep 30"))
    await heard(process, b"ready")
    writing = asyncio.ensure_future(process.write(bytes(4 * WINDOW_BYTES)))
    await shell(sandbox, "true")
    is_waiting = not writing.done()
    process.signal(signal.SIGKILL)
    await writing
    assert is_waiting
    assert await process.wait() == ProcessEnd(0, signal.SIGKILL)


async def test_a_program_that_closes_its_input_goes_on(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("exec 0<&-; echo closed; sleep 0.2; echo on"))
    await heard(process, b"closed")
    await process.write(bytes(3 * WINDOW_BYTES))
    process.close_input()
    assert (await drained(process))[::2] == (b"on\n", ProcessEnd(0))


async def test_a_signal_reaches_the_whole_group(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("sleep 300 & sleep 300 & echo ready; wait"))
    await heard(process, b"ready")
    process.signal(signal.SIGTERM)
    assert await process.wait() == ProcessEnd(0, signal.SIGTERM)
    assert (await shell(sandbox, SLEEPERS)).stdout == b"0\n"
    process.signal(signal.SIGTERM)  # to nobody


async def test_a_program_may_answer_a_signal(sandbox: Sandbox) -> None:
    process = await sandbox.start(
        script("trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.05; done")
    )
    await heard(process, b"ready")
    process.signal(signal.SIGINT)
    out, _, end = await drained(process)
    assert (out, end) == (b"caught\n", ProcessEnd(4))
    with pytest.raises(SandboxError, match="refused"):
        process.signal(99)


async def test_no_signal_is_ignored_from_the_start(runtime: Runtime) -> None:
    """What started this process may have ignored some (`nohup`, `&`): programs have all of them back."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        (sandbox,) = await runtime.fork([spec()])
        process = await sandbox.start(script("grep SigIgn: /proc/self/status"))
        shown = await drained(process)
        asked = await python(sandbox, "print(open('/proc/self/status').read())")
    finally:
        for number, former in before.items():
            signal.signal(number, former)
    for text in (shown[0], asked.stdout):
        ignored = int(re.findall(rb"SigIgn:\s*(\w+)", text)[0], 16)
        assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGHUP - 1)


async def test_a_time_limit_ends_a_program_and_its_session(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("echo began; sleep 300 & sleep 300", timeout_s=1.0))
    out, _, end = await drained(process)
    assert (out, end) == (b"began\n", ProcessEnd(0, signal.SIGKILL, timed_out=True))
    assert (await shell(sandbox, SLEEPERS)).stdout == b"0\n"


async def test_a_program_without_a_limit_of_its_own_outlives_those_of_calls(
    runtime: Runtime,
) -> None:
    (sandbox,) = await runtime.fork([spec(limits=SandboxLimits(exec_timeout_s=0.2))])
    process = await sandbox.start(script("read word; echo $word", timeout_s=None))
    assert (await shell(sandbox, "sleep 60")).timed_out
    await process.write(b"still\n")
    assert await drained(process) == (b"still\n", b"", ProcessEnd(0))


async def test_a_sandbox_that_is_gone_is_no_end_of_a_program(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    process = await sandbox.start(script("echo said; sleep 300"))
    await heard(process, b"said")
    waiting = [asyncio.ensure_future(one) for one in (process.read(), process.wait())]
    await runtime.destroy(member())
    for one in (*waiting, process.write(b"x"), sandbox.start(script("true"))):
        with pytest.raises(SandboxError) as gone:
            await one
        assert gone.value.reason == "lost"
    with pytest.raises(SandboxError, match="lost"):
        process.signal(signal.SIGTERM)
    process.stop()


async def test_a_program_that_does_not_start_says_why(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("no-such-program",)))
    _, err, end = await drained(process)
    assert (process.pid, end) == (0, ProcessEnd(127))
    assert b"No such file" in err
    for folder, reason in (("missing", "not_found"), ("/etc/passwd", "not_found")):
        with pytest.raises(SandboxError) as refused:
            await sandbox.start(Command(("true",), folder=folder))
        assert refused.value.reason == reason


async def test_folder_and_variables_are_the_programs_own(sandbox: Sandbox) -> None:
    await sandbox.call(WriteRequest("deep/file", b""))
    command = Command(("sh", "-c", "pwd; echo $NAME $HOME; ls"), {"NAME": "a b"}, "deep")
    out, _, _ = await drained(await sandbox.start(command))
    assert out == b"/work/deep\na b /work\nfile\n"
    assert (await shell(sandbox, "pwd; echo $NAME")).stdout == b"/work\n\n"


async def test_a_background_process_does_not_hold_its_program(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("sleep 30 & echo started"))
    assert await drained(process) == (b"started\n", b"", ProcessEnd(0))


async def test_a_reader_that_does_not_read_stops_the_writer_and_nobody_else(
    sandbox: Sandbox,
) -> None:
    process = await sandbox.start(script(FLOOD, timeout_s=None))
    assert await process.read() is not None
    for turn in range(5):
        assert (await shell(sandbox, f"echo {turn}")).stdout == b"%d\n" % turn
        assert (await python(sandbox, f"print({turn})")).stdout == b"%d\n" % turn
        busy = await drained(await sandbox.start(script("head -c 3000000 /dev/zero")))
        assert len(busy[0]) == 3_000_000
    rounds = int((await shell(sandbox, "wc -l < rounds")).stdout)
    assert rounds <= 2 * WINDOW_BYTES // 65536 + 4
    process.stop()
    assert (await drained(process))[2] == ProcessEnd(0, signal.SIGKILL)


async def test_what_a_slow_reader_left_is_whole_after_the_end(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("head -c 300000 /dev/zero; head -c 50000 /dev/zero >&2"))
    await shell(sandbox, "true")
    out, err, end = await drained(process)
    assert (len(out), len(err), end) == (300_000, 50_000, ProcessEnd(0))


async def test_two_gigabytes_are_read_without_being_held(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    is_slow = runtime.capabilities().isolation is Isolation.VM
    total = 32 << 20 if is_slow else 1 << 30
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _peak_kb()
    text = f"head -c {total} /dev/zero & head -c {total} /dev/zero >&2; wait"
    process = await sandbox.start(script(text, timeout_s=None))
    read = dict.fromkeys(StreamName, 0)
    while (chunk := await process.read()) is not None:
        read[chunk.stream] += len(chunk.content)
    assert read == dict.fromkeys(StreamName, total)
    assert _peak_kb() - before < 64 << 10


async def test_floods_starve_neither_each_other_nor_a_call_nor_a_file(sandbox: Sandbox) -> None:
    floods = [await sandbox.start(script("cat /dev/zero", timeout_s=None)) for _ in range(4)]
    read = [0] * len(floods)

    async def follow(index: int) -> None:
        while (chunk := await floods[index].read()) is not None:
            read[index] += len(chunk.content)

    readers = [asyncio.ensure_future(follow(index)) for index in range(len(floods))]
    for turn in range(10):
        assert (await shell(sandbox, f"echo {turn}")).stdout == b"%d\n" % turn
        assert (await sandbox.files(StatRequest("."))).name == "work"  # type: ignore[union-attr]
    await eventually(lambda: min(read) > 4 * WINDOW_BYTES)
    for flood in floods:
        flood.stop()
    await asyncio.gather(*readers)


async def test_calls_keep_their_order_beside_programs(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("cat",)))
    slow = sandbox.call(ExecRequest(("sh", "-c", "sleep 0.3; echo 1 >> order")))
    calls = [slow, shell(sandbox, "echo 2 >> order"), shell(sandbox, "cat order")]
    results = await asyncio.gather(*calls)
    assert results[-1].stdout == b"1\n2\n"  # type: ignore[union-attr]
    process.close_input()
    assert await process.wait() == ProcessEnd(0)


async def test_too_many_programs_are_refused_and_those_that_run_go_on(runtime: Runtime) -> None:
    limits = SandboxLimits(pids_max=COMMANDS_MAX + 8)
    (sandbox,) = await runtime.fork([spec(limits=limits)])
    made = [await sandbox.start(Command(("cat",))) for _ in range(COMMANDS_MAX)]
    with pytest.raises(SandboxError, match="refused"):
        await sandbox.start(Command(("true",)))
    assert (await shell(sandbox, "echo on")).stdout == b"on\n"
    for number, process in enumerate(made):
        await process.write(b"%d" % number)
        process.close_input()
    assert [await drained(one) for one in made] == [
        (b"%d" % number, b"", ProcessEnd(0)) for number in range(COMMANDS_MAX)
    ]
    assert await drained(await sandbox.start(script("echo again"))) == (
        b"again\n",
        b"",
        ProcessEnd(0),
    )


async def test_a_start_that_is_given_up_leaves_no_program(sandbox: Sandbox) -> None:
    starting = asyncio.ensure_future(sandbox.start(Command(("sleep", "300"))))
    await asyncio.sleep(0)
    starting.cancel()

    async def is_gone() -> bool:
        return (await shell(sandbox, SLEEPERS)).stdout == b"0\n"

    await eventually(is_gone)


def _peak_kb() -> int:
    """The most memory that this process, which reads what guests say, has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
