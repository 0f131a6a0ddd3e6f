"""Ways out of a sandbox, tried from the inside: each is refused or contained, and neighbours work on."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from sandboxes.files import (
    Entry,
    EntryKind,
    FileRequest,
    ListRequest,
    MakeFolderRequest,
    MoveRequest,
    RemoveRequest,
    StatRequest,
)
from sandboxes.ports import Isolation, Runtime, Sandbox
from tests.support.sandboxes import python, shell, spec
from tests.support.waiting import eventually
from venusrl.env.sandbox import ReadRequest, SandboxError, SandboxResult, WriteRequest

DISK = 8 << 20
SECRET = "neighbour-7c1f"
MARK = "86400.125"
"""Seconds that nobody else sleeps, so that the process is found."""

EVERYWHERE = (Path("/"), Path("/tmp"))
"""Homes of accounts that have none: folders of this name are inside too, others than the machine's."""

LIMITS = SandboxLimits(disk_bytes=DISK, pids_max=16, memory_bytes=128 << 20)


@pytest.fixture
async def sandbox(runtime: Runtime) -> Sandbox:
    """Where the attacks start."""
    (made,) = await runtime.fork([spec(limits=LIMITS)])
    return made


@pytest.fixture
async def neighbour(runtime: Runtime) -> Sandbox:
    """Another sandbox of the node, with files, a process and a server of its own."""
    (made,) = await runtime.fork([spec(1, limits=LIMITS)])
    script = f"echo {SECRET} | tee /work/secret /dev/shm/secret; sleep {MARK} & echo $! > pid"
    await shell(made, script)
    await python(
        made,
        "import socket\nnames = [socket.socket(socket.AF_UNIX), socket.socket()]\n"
        "names[0].bind('\\0venus-neighbour')\nnames[1].bind(('127.0.0.1', 4711))\n"
        "for one in names:\n    one.listen()\n",
    )
    return made


async def assert_well(neighbour: Sandbox) -> None:
    """The neighbour has its file, its process and its server, and answers."""
    alive = await shell(neighbour, "kill -0 $(cat pid) && cat secret /dev/shm/secret")
    assert alive.text.split() == [SECRET, SECRET]
    assert (await python(neighbour, "print(len(names))")).stdout == b"2\n"


def host_peak_kb() -> int:
    """The most memory that this process, which reads what guests say, has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_nothing_of_a_neighbour_is_found(sandbox: Sandbox, neighbour: Sandbox) -> None:
    found = await shell(
        sandbox,
        f"grep -rl {SECRET} /work /dev/shm /tmp /run /etc 2>/dev/null; "
        f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '{MARK.replace('.', '[.]')}'; "
        "ls /proc/[0-9]*/root/work/secret 2>/dev/null; cat /proc/net/unix | grep -c venus",
    )
    assert found.stdout.split() == [b"0", b"0"]
    await assert_well(neighbour)


async def test_no_server_of_the_host_or_of_a_neighbour_is_reached(
    sandbox: Sandbox, neighbour: Sandbox
) -> None:
    name = f"\0venus-escape-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        places = [f"('127.0.0.1', {tcp.getsockname()[1]})", "('127.0.0.1', 4711)"]
        names = [repr(name), repr("\0venus-neighbour")]
        tried = await python(
            sandbox,
            "import socket\n"
            f"for place in [{', '.join((*places, *names))}]:\n"
            "    kind = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET\n"
            "    with socket.socket(kind) as one:\n"
            "        one.settimeout(1)\n"
            "        print(one.connect_ex(place) != 0)\n",
        )
    assert tried.stdout.split() == [b"True"] * 4, tried
    await assert_well(neighbour)


async def test_no_packet_leaves(sandbox: Sandbox) -> None:
    tried = await python(
        sandbox,
        "import socket\n"
        "for place in ['10.0.0.1', '169.254.169.254', '192.0.2.1']:\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
        "        try:\n            one.sendto(b'x', (place, 53))\n"
        "        except OSError as error:\n            print(error.errno)\n",
    )
    assert tried.stdout.split() == [b"101"] * 3, tried


async def test_a_memory_bomb_ends_its_own_sandbox_alone(
    runtime: Runtime, sandbox: Sandbox, neighbour: Sandbox
) -> None:
    bomb = (
        "import os, time\nfor _ in range(8):\n    if not os.fork():\n"
        "        x = b'x' * (60 << 20)\n        time.sleep(30)\ntime.sleep(30)"
    )
    with pytest.raises(SandboxError, match="out of memory"):
        await python(sandbox, bomb)
    await eventually(lambda: runtime.get(sandbox.key) is None)
    await assert_well(neighbour)


@pytest.mark.parametrize(
    "place", ["/etc/passwd", "/usr/bin/env", "/proc/1/environ", "/proc/self/mem"]
)
async def test_a_hard_link_brings_in_nothing_from_outside(sandbox: Sandbox, place: str) -> None:
    assert (await shell(sandbox, f"ln {place} /work/linked")).exit_code != 0
    with pytest.raises(SandboxError) as refused:
        await sandbox.call(ReadRequest("linked"))
    assert refused.value.reason == "not_found"


@pytest.mark.parametrize("name", ["l/passwd", "chain", "hard", "fifo", "null", "zero", "loop"])
@pytest.mark.parametrize("is_read", [True, False])
async def test_links_pipes_and_devices_are_no_way_for_the_file_routes(
    sandbox: Sandbox, name: str, is_read: bool
) -> None:
    await shell(
        sandbox,
        "ln -s /etc l; ln -s /etc/passwd one; ln -s one chain; ln one hard; mkfifo fifo; "
        "mknod null c 1 3; ln -sf /dev/null null; ln -s /dev/zero zero; ln -s loop loop",
    )
    request = ReadRequest(name) if is_read else WriteRequest(name, b"x")
    with pytest.raises(SandboxError) as refused:
        await sandbox.call(request)
    assert refused.value.reason == "denied"
    assert (await shell(sandbox, "cat /etc/passwd | wc -l")).stdout == b"1\n"


@pytest.mark.parametrize(
    "place", ["l/x", "chain/x", "../etc/x", "/etc/passwd", "a/../../etc", "d/l/x"]
)
@pytest.mark.parametrize(
    "request_to",
    [
        StatRequest,
        ListRequest,
        MakeFolderRequest,
        RemoveRequest,
        lambda path: MoveRequest(path, "inside"),
        lambda path: MoveRequest("own", path),
    ],
    ids=["stat", "list", "mkdir", "remove", "move-from", "move-to"],
)
async def test_no_file_route_leads_out_of_the_work_folder(
    sandbox: Sandbox, place: str, request_to: Callable[[str], FileRequest]
) -> None:
    await shell(
        sandbox,
        "mkdir a d /dev/shm/out; echo kept > /dev/shm/out/x; echo own > own; ln -s /dev/shm/out l; "
        "ln -s l chain; ln -s /dev/shm/out d/l",
    )
    with pytest.raises(SandboxError) as refused:
        await sandbox.files(request_to(place))
    assert refused.value.reason == "denied"
    left = await shell(sandbox, "cat /dev/shm/out/* own; ls -A /dev/shm/out; ls -A")
    assert left.text.split() == ["kept", "own", "x", ".tmp", "a", "chain", "d", "l", "own"]


@pytest.mark.parametrize("name", ["l", "loop", "fifo", "null"])
async def test_links_and_special_files_are_shown_and_moved_but_never_opened(
    sandbox: Sandbox, name: str
) -> None:
    await shell(sandbox, "ln -s /etc l; ln -s loop loop; mkfifo fifo; ln -s /dev/null null")
    found = await sandbox.files(StatRequest(name))
    assert isinstance(found, Entry)
    assert found.kind in (EntryKind.LINK, EntryKind.OTHER)
    with pytest.raises(SandboxError) as refused:
        await sandbox.files(ListRequest(name))
    assert refused.value.reason == "denied"
    with pytest.raises(SandboxError, match="denied"):
        await sandbox.files(MakeFolderRequest(name))
    await sandbox.files(MoveRequest(name, "moved"))
    await sandbox.files(RemoveRequest("moved"))
    assert (await shell(sandbox, "ls -A; ls /etc/passwd /dev/null")).exit_code == 0


@pytest.mark.parametrize("path", ["/work", ".", "/work/", "a/.."])
async def test_the_work_folder_itself_stays(sandbox: Sandbox, path: str) -> None:
    await shell(sandbox, "mkdir a")
    for request in (RemoveRequest(path), MoveRequest(path, "x"), MoveRequest("a", path)):
        with pytest.raises(SandboxError, match="denied"):
            await sandbox.files(request)
    assert (await shell(sandbox, "ls -A /work")).text.split() == [".tmp", "a"]


async def test_a_folder_that_turns_into_a_link_while_it_is_removed_costs_nobody_else(
    sandbox: Sandbox, neighbour: Sandbox
) -> None:
    flip = "while :; do mkdir -p t/x; rm -rf t/x; ln -sfn /dev/shm/out t/x; rm -f t/x; done"
    await shell(
        sandbox, f"mkdir -p /dev/shm/out t; echo kept > /dev/shm/out/f; ({flip}) >&- 2>&- &"
    )
    seen: set[str | None] = {None}
    for _ in range(30):
        try:
            await sandbox.files(RemoveRequest("t/x"))
        except SandboxError as error:
            seen.add(error.reason)
    assert seen <= {None, "not_found", "denied"}
    assert (await shell(sandbox, "cat /dev/shm/out/f")).stdout == b"kept\n"
    await assert_well(neighbour)


async def test_no_device_can_be_made(sandbox: Sandbox) -> None:
    for kind in ("c 1 1", "b 8 0", "c 10 200"):
        assert (await shell(sandbox, f"mknod device {kind}")).exit_code != 0, kind


async def test_a_folder_that_turns_into_a_link_while_it_is_read_gives_nothing_of_the_host(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The agent may lose that race, and then reads what its own user may: never the machine's file."""
    (tmp_path / "passwd").write_text(SECRET)
    flip = f"mkdir -p d e; echo own > e/passwd; while :; do ln -sfn {tmp_path} d/x; ln -sfn /work/e d/x; done"
    await shell(sandbox, f"({flip}) > /dev/null 2>&1 & echo")
    seen: set[str | SandboxResult] = set()
    for _ in range(50):
        try:
            content = await sandbox.call(ReadRequest("d/x/passwd"))
        except SandboxError as error:
            seen.add(error.reason)
        else:
            seen.add(content)
    assert seen <= {"denied", "not_found", b"own\n"}


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
    places = [str(secret), "/etc/shadow", "/var", "/home", "/run/user", "/sys"]
    if Path.home() not in EVERYWHERE:
        places.append(str(Path.home()))
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


async def test_no_signal_reaches_the_agent_or_anybody_outside(
    sandbox: Sandbox, neighbour: Sandbox
) -> None:
    await shell(sandbox, "kill -9 1; kill -9 -1")
    await shell(sandbox, "kill -STOP 1; kill -TERM 1; kill -INT -1; kill -STOP -1", timeout_s=1.0)
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"
    await assert_well(neighbour)


async def test_a_fork_bomb_ends_at_the_pids_limit(sandbox: Sandbox, neighbour: Sandbox) -> None:
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
    await assert_well(neighbour)


async def test_forks_that_hold_little_of_their_own_are_not_out_of_memory(sandbox: Sandbox) -> None:
    fork = (
        "import os, time\nkept = bytearray(16 << 20)\n"
        "made = [os.fork() or (time.sleep(2), os._exit(0)) for _ in range(10)]\n"
        "print(sum(os.waitpid(pid, 0)[1] for pid in made))\n"
    )
    assert (await python(sandbox, fork)).stdout == b"0\n"


async def test_forks_that_hold_too_much_together_are_out_of_memory(sandbox: Sandbox) -> None:
    fork = (
        "import os, time\n"
        "def grow():\n    kept = b'x' * (24 << 20)\n    time.sleep(20)\n    os._exit(0)\n"
        "made = [os.fork() or grow() for _ in range(10)]\n"
        "for pid in made:\n    os.waitpid(pid, 0)\n"
        "print('all')\n"
    )
    try:
        said = (await python(sandbox, fork)).stdout.decode()
    except SandboxError as error:
        said = str(error)
    assert "all" not in said
    await eventually(lambda: sandbox.stats().private_bytes <= LIMITS.memory_bytes + DISK)


async def test_limits_of_processes_hold_in_each_sandbox_alone(runtime: Runtime) -> None:
    limits = SandboxLimits(pids_max=8)
    made = await runtime.fork([spec(index, limits=limits) for index in range(4)])
    script = "for i in 1 2 3; do sleep 5 & done; echo started"
    results = [await shell(one, script) for one in made]
    assert [one.stdout for one in results] == [b"started\n"] * 4


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
async def test_the_disk_limit_holds(sandbox: Sandbox, neighbour: Sandbox, place: str) -> None:
    script = f"for i in 1 2 3 4 5 6 7 8; do head -c {DISK // 2} /dev/zero > {place}/f$i; done"
    await shell(sandbox, script)
    used = int((await shell(sandbox, f"du -sb {place}/ | cut -f1")).stdout)
    assert used <= max(DISK, 16 << 20) + (64 << 10)
    assert (await python(sandbox, "print(1)")).stdout == b"1\n"
    await assert_well(neighbour)


async def test_shared_memory_counts_as_memory(sandbox: Sandbox, neighbour: Sandbox) -> None:
    source = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096):\n    m[i] = 1\n"
    with pytest.raises(SandboxError, match="out of memory"):
        await python(sandbox, source + "import time; time.sleep(30)")
    await assert_well(neighbour)


async def test_two_gigabytes_of_output_on_both_streams_stay_out_of_memory(
    runtime: Runtime, sandbox: Sandbox, neighbour: Sandbox
) -> None:
    # A machine may have its instructions emulated, a hundred times as slow; its two streams are still
    # more than this process may hold.
    total = 48 << 20 if runtime.capabilities().isolation is Isolation.VM else 2 << 30
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = host_peak_kb()
    script = f"head -c {total} /dev/zero & head -c {total} /dev/zero >&2; wait"
    result = await shell(sandbox, script, timeout_s=60.0)
    has_ended = not result.timed_out  # the whole of a result that is not would be printed
    assert has_ended
    assert result.truncated_bytes == 2 * (total - (1 << 20))
    assert host_peak_kb() - before < 64 << 10
    assert sandbox.stats().private_bytes < 64 << 20
    await assert_well(neighbour)
