"""Programs on a pseudo-terminal, on every runtime."""

import signal

import pytest

from sandboxes.commands import Command, ProcessEnd, StreamName, Terminal
from sandboxes.ports import Isolation, Runtime, Sandbox
from tests.support.sandboxes import drained, heard, script, shell, spec
from venusrl.env.sandbox import SandboxError


@pytest.fixture
async def sandbox(runtime: Runtime) -> Sandbox:
    (made,) = await runtime.fork([spec()])
    return made


def on_terminal(text: str, rows: int = 24, columns: int = 80) -> Command:
    return Command(("sh", "-c", text), timeout_s=30.0, terminal=Terminal(rows, columns))


async def test_a_program_has_a_terminal_of_the_size_that_was_asked_for(sandbox: Sandbox) -> None:
    text = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM > /dev/tty"
    out, err, end = await drained(await sandbox.start(on_terminal(text, 33, 101)))
    assert (out, err, end) == (b"33 101\r\nxterm-256color\r\n", b"", ProcessEnd(0))


async def test_a_new_size_is_told_to_the_program(sandbox: Sandbox) -> None:
    text = "trap 'stty size' WINCH; echo ready; read word; read word"
    process = await sandbox.start(on_terminal(text))
    await heard(process, b"ready")
    process.resize(Terminal(50, 120))
    assert b"50 120\r\n" in await heard(process, b"50 120\r\n")
    await process.write(b"a\nb\n")
    assert (await drained(process))[2] == ProcessEnd(0)


async def test_what_is_typed_is_echoed_and_control_c_interrupts_the_foreground(
    sandbox: Sandbox,
) -> None:
    text = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    process = await sandbox.start(on_terminal(text))
    await heard(process, b"ready")
    await process.write(b"typed")
    await heard(process, b"typed")
    await process.write(b"\x03")
    out, _, end = await drained(process)
    assert out.endswith(b"caught\r\n")
    assert end == ProcessEnd(5)


async def test_a_signal_reaches_the_foreground_and_a_kill_the_program_too(
    sandbox: Sandbox,
) -> None:
    # The shell with job control puts its jobs into groups of their own.
    process = await sandbox.start(on_terminal("set -m; sleep 300; echo code $?; sleep 300"))

    async def asleep() -> int:
        found = await shell(sandbox, "cat /proc/[0-9]*/stat | grep -c '(sleep)'")
        return int(found.stdout)

    while await asleep() == 0:
        pass
    process.signal(signal.SIGTERM)
    assert b"code 143" in await heard(process, b"143")
    process.signal(signal.SIGKILL)
    assert (await drained(process))[2] == ProcessEnd(0, signal.SIGKILL)


async def test_the_end_of_input_ends_a_reader(sandbox: Sandbox) -> None:
    process = await sandbox.start(on_terminal("stty -echo; echo ready; cat"))
    await heard(process, b"ready")
    await process.write(b"line\n")
    process.close_input()
    out, _, end = await drained(process)
    assert (out.strip(), end) == (b"line", ProcessEnd(0))
    with pytest.raises(SandboxError, match="refused"):
        await process.write(b"more")


async def test_a_terminal_ends_with_its_program(sandbox: Sandbox) -> None:
    process = await sandbox.start(on_terminal("set -m; sleep 300 & echo begun"))
    out, _, end = await drained(process)
    assert (b"begun" in out, end) == (True, ProcessEnd(0))


async def test_a_terminal_is_one_stream_without_a_reader_it_waits(sandbox: Sandbox) -> None:
    process = await sandbox.start(
        on_terminal("stty -onlcr; echo err >&2; head -c 900000 /dev/zero")
    )
    assert (await shell(sandbox, "echo on")).stdout == b"on\n"
    out, err, end = await drained(process)
    assert (out, err, end) == (b"err\n" + bytes(900_000), b"", ProcessEnd(0))
    assert {one.value for one in StreamName} == {"stdout", "stderr"}


async def test_two_terminals_are_strangers(sandbox: Sandbox) -> None:
    first = await sandbox.start(on_terminal("tty; read word; echo got $word"))
    second = await sandbox.start(on_terminal("tty; read word; echo got $word"))
    names = {await heard(one, b"\n") for one in (first, second)}
    assert len(names) == 2
    await second.write(b"two\n")
    await first.write(b"one\n")
    assert b"got one" in (await drained(first))[0]
    assert b"got two" in (await drained(second))[0]


async def test_pipes_have_no_size(sandbox: Sandbox) -> None:
    process = await sandbox.start(script("read word"))
    with pytest.raises(SandboxError, match="refused"):
        process.resize(Terminal())
    process.close_input()
    assert (await process.wait()).exit_code == 1


TYPES = (
    "python3 -c \"import fcntl; fcntl.ioctl(open('{terminal}'), 0x5412, b'x')\" 2>&1 | tail -n 1 | "
    "grep -q 'Operation not permitted\\|Permission\\|Input/output'; echo refused $?"
)
"""TIOCSTI: a character as if it was typed."""


async def test_no_program_types_into_a_terminal_that_others_read(sandbox: Sandbox) -> None:
    reader = await sandbox.start(on_terminal("tty; echo told; sleep 60"))
    terminal = (await heard(reader, b"told")).split()[0].decode()
    out, _, _ = await drained(await sandbox.start(on_terminal(TYPES.format(terminal=terminal))))
    assert b"refused 0" in out
    reader.stop()


async def test_no_program_types_into_its_own_terminal_where_the_kernel_is_shared(
    runtime: Runtime, sandbox: Sandbox
) -> None:
    """In a machine it may, as its kernel allows it: nobody of the host reads that terminal as input."""
    out, _, _ = await drained(await sandbox.start(on_terminal(TYPES.format(terminal="/dev/tty"))))
    is_machine = runtime.capabilities().isolation is Isolation.VM
    assert b"refused 0" in out or is_machine
