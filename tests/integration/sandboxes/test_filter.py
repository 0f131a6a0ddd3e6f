"""The filter of system calls, tried from inside of sandboxes of both origins."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.ports import Sandbox
from sandboxes.runtimes.process import seccomp
from tests.support.requirements import requires
from tests.support.sandboxes import process_runtime, python, shell, spec

pytestmark = requires("seccomp")

EPERM, ENOSYS = 1, 38

X86_64 = {
    "ptrace": 101, "personality": 135, "pivot_root": 155, "mount": 165, "umount2": 166, "swapon": 167,
    "reboot": 169, "init_module": 175, "add_key": 248, "request_key": 249, "keyctl": 250,
    "migrate_pages": 256, "unshare": 272, "vmsplice": 278, "perf_event_open": 298,
    "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "bpf": 321, "userfaultfd": 323,
    "move_mount": 429, "open_tree": 428, "fsopen": 430, "pidfd_getfd": 438, "mount_setattr": 442,
    "msgget": 68, "semget": 64,
}  # fmt: skip
"""A call with arguments of zero; what is refused is refused before its arguments are looked at."""

X86_64_ABSENT = {
    "io_uring_setup": 425, "clone3": 435, "memfd_create": 319, "memfd_secret": 447,
}  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(True, marks=requires("zygote")),
        pytest.param(False, marks=requires("bwrap")),
    ],
    ids=["zygote", "bwrap"],
)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with process_runtime(tmp_path, is_warm=request.param) as runtime:
        (made,) = await runtime.fork([spec()])
        yield made


async def errors_of(sandbox: Sandbox, numbers: list[int]) -> list[int]:
    """The error of each call, made with zeros; 0 for one that succeeds."""
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for number in {numbers}:\n"
        "    ctypes.set_errno(0)\n"
        "    failed = libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) < 0\n"
        "    print(ctypes.get_errno() if failed else 0)\n"
    )
    return [int(line) for line in (await python(sandbox, source)).stdout.split()]


async def machine_of(sandbox: Sandbox) -> str:
    return (await shell(sandbox, "uname -m")).text.strip()


async def test_calls_that_no_tool_needs_are_refused(sandbox: Sandbox) -> None:
    if await machine_of(sandbox) != "x86_64":
        pytest.skip("numbers of another machine")
    refused = await errors_of(sandbox, list(X86_64.values()))
    assert dict(zip(X86_64, refused, strict=True)) == dict.fromkeys(X86_64, EPERM)
    absent = await errors_of(sandbox, list(X86_64_ABSENT.values()))
    assert dict(zip(X86_64_ABSENT, absent, strict=True)) == dict.fromkeys(X86_64_ABSENT, ENOSYS)


async def test_new_namespaces_are_refused_also_by_clone(sandbox: Sandbox) -> None:
    source = (
        "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):\n"
        "    pid = libc.syscall(ctypes.c_long(NUMBER), ctypes.c_ulong(flag | signal.SIGCHLD), 0, 0, 0, 0)\n"
        "    if pid == 0:\n        os._exit(0)\n"
        "    print(ctypes.get_errno() if pid < 0 else 0)\n"
    )
    number = {"x86_64": "56", "aarch64": "220"}.get(await machine_of(sandbox))
    if number is None:
        pytest.skip("numbers of another machine")
    result = await python(sandbox, source.replace("NUMBER", number))
    assert result.stdout.split() == [b"1"] * 7, result


async def test_sockets_of_other_families_are_refused(sandbox: Sandbox) -> None:
    source = (
        "import socket\nfor family in (1, 2, 10, 16, 0, 3, 9, 17, 21, 38, 40, 44, 45, 100):\n"
        "    try:\n        socket.socket(family, socket.SOCK_DGRAM).close()\n        print('made')\n"
        "    except OSError as error:\n        print(error.errno)\n"
    )
    said = (await python(sandbox, source)).text.split()
    assert said == ["made"] * 4 + ["1"] * 10


async def test_words_cannot_be_put_into_a_terminal(sandbox: Sandbox) -> None:
    source = (
        "import fcntl, pty\nmain, side = pty.openpty()\n"
        "try:\n    fcntl.ioctl(side, 0x5412, b'x')\nexcept OSError as error:\n    print(error.errno)\n"
    )
    assert (await python(sandbox, source)).stdout == b"1\n"


async def test_what_tools_do_still_works(sandbox: Sandbox) -> None:
    source = (
        "import concurrent.futures, multiprocessing, socket, subprocess, threading\n"
        "with concurrent.futures.ThreadPoolExecutor(2) as pool:\n"
        "    print(sum(pool.map(int, '123')))\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(pool.map(abs, [-1, 2]))\n"
        "print(subprocess.run(['sh', '-c', 'echo $((6 * 7))'], capture_output=True).stdout)\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "with socket.create_connection(server.getsockname()) as one:\n"
        "    print(server.accept()[0].send(b'x'))\n"
    )
    result = await python(sandbox, source)
    assert result.stdout.split(b"\n") == [b"6", b"[1, 2]", b"b'42\\n'", b"1", b""], result
    assert (await shell(sandbox, "ls -la / | sort | head -3 | wc -l")).stdout == b"3\n"


def test_the_filter_is_small_and_the_same_each_time() -> None:
    program = seccomp.compiled()
    assert program is not None
    assert program == seccomp.compiled()
    assert 0 < len(program) // 8 <= 4096
