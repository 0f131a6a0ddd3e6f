"""What user code cannot do from inside its process."""

from pathlib import Path

import pytest

from tests.integration.environments.helpers import opened, running_source
from tests.support.requirements import requires
from venusrl.env.host.ports import EnvironmentCrashed, ProtocolError
from venusrl.env.messages import Message

pytestmark = requires("bwrap")

GO = Message("assistant", "go")


async def answer(tmp_path: Path, body: str, memory_mb: int = 256, pids: int = 32) -> str:
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    source = f"class Env(Environment):\n    async def reply(self, turn):\n{lines}"
    async with running_source(tmp_path, source, memory_mb=memory_mb, pids=pids) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, GO)
        assert seen.messages is not None
        return seen.messages[0].content


def attempt(code: str) -> str:
    return f"""
try:
    {code}
except OSError as error:
    return [Message("user", type(error).__name__)]
return [Message("user", "it worked")]
"""


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('1.1.1.1', 53), 1)",
        "open('/venus/package/env.py', 'a')",
        "open('/usr/x', 'w')",
        "open('/x', 'w')",
        "os.listdir('/home')",
        "os.listdir('/root/.ssh')",
        "os.listdir('/tests')",
        "open('/etc/passwd')",
        "open('/etc/shadow')",
        "os.setuid(0) if os.getuid() else open('/etc/shadow')",
    ],
)
async def test_the_machine_is_out_of_reach(tmp_path: Path, code: str) -> None:
    assert await answer(tmp_path, attempt(code)) != "it worked"


async def test_files_beside_the_package_are_not_visible(tmp_path: Path) -> None:
    package, secret = tmp_path / "package", tmp_path / "secret"
    package.mkdir()
    secret.write_text("canary")
    assert await answer(package, attempt(f"open({str(secret)!r})")) == "FileNotFoundError"


async def test_the_machines_network_and_settings_are_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENUS_SECRET", "canary")
    body = """
import glob, socket
seen = [name for _, name in socket.if_nameindex()]
text = repr(dict(os.environ)) + repr(seen)
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        text += open(path).read()
    except OSError:
        pass
return [Message("user", text)]
"""
    seen = await answer(tmp_path, body)
    assert "canary" not in seen
    assert seen.endswith("['lo']") or "['lo']" in seen


async def test_processes_of_the_machine_are_not_visible(tmp_path: Path) -> None:
    body = 'return [Message("user", str(len([p for p in os.listdir("/proc") if p.isdigit()])))]'
    assert int(await answer(tmp_path, body)) <= 3


async def test_own_temporary_files_are_allowed_and_bounded(tmp_path: Path) -> None:
    small = attempt("open('/tmp/x', 'wb').write(b'x' * 1000)")
    assert await answer(tmp_path, small) == "it worked"
    large = attempt("open('/tmp/x', 'wb').write(bytes(100 << 20))")
    assert await answer(tmp_path, large) == "OSError"


async def test_memory_is_limited(tmp_path: Path) -> None:
    body = """
try:
    block = bytearray(512 << 20)
except MemoryError:
    return [Message("user", "no memory")]
return [Message("user", str(len(block)))]
"""
    assert await answer(tmp_path, body, memory_mb=128) == "no memory"


async def test_processes_are_limited_and_die_with_the_environment(tmp_path: Path) -> None:
    body = """
count = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        count += 1
except OSError:
    pass
return [Message("user", str(count))]
"""
    assert int(await answer(tmp_path, body, pids=12)) < 12


async def test_a_forged_frame_kills_the_process(tmp_path: Path) -> None:
    body = """
for fd in range(3, 64):
    try:
        os.write(fd, b"\\xff\\xff\\xff\\xff forged")
    except OSError:
        pass
await asyncio.sleep(10)
"""
    with pytest.raises((ProtocolError, EnvironmentCrashed)):
        await answer(tmp_path, body)
