"""The `shell` environment in real sandboxes: who fixes the bug scores, and nothing else does."""

import json
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from environments.builtin.shell.generate_tasks import Repository, main, repositories
from environments.checks import check_package
from sandboxes.runtimes.process.runtime import ProcessRuntime
from tests.integration.environments.helpers import SHIPPED
from tests.support.requirements import requires
from venusrl.env.host.episode import Played, Spoken, Stage, grade_group, play
from venusrl.env.host.manifest import read_manifest
from venusrl.env.host.ports import InstanceKey, RolloutGrade
from venusrl.env.host.process import SandboxedEnvironment, start_environment
from venusrl.env.messages import Message, ToolCall
from venusrl.env.values import Unscorable
from workers.chores.case_sandboxes import CaseSandboxes

SHELL: Final = SHIPPED / "builtin" / "shell"
PASSING: Final = "import unittest\nclass AppTest(unittest.TestCase):\n    def test(self): pass\n"


def the_repository() -> Repository:
    return next(iter(repositories("test")))


def solution() -> tuple[str, str]:
    """Path and right content of the file with the bug."""
    one = the_repository()
    return next(
        (path, one.right[path]) for path in one.right if one.right[path] != one.broken[path]
    )


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    one = ProcessRuntime(tmp_path / "guest")
    yield one
    await one.close()


@pytest.fixture
async def stage(runtime: ProcessRuntime) -> AsyncIterator[Stage]:
    async with staged(runtime, SHELL) as one:
        yield one


class staged:
    """A started package on a runtime."""

    def __init__(self, runtime: ProcessRuntime, folder: Path) -> None:
        self._runtime, self._folder = runtime, folder
        self._process: SandboxedEnvironment | None = None

    async def __aenter__(self) -> Stage:
        manifest = read_manifest(self._folder)
        self._process = await start_environment(self._folder, manifest, {})
        return Stage(self._process, manifest, CaseSandboxes(self._runtime, self._folder))

    async def __aexit__(self, *error: object) -> None:
        assert self._process is not None
        await self._process.stop()


async def played(stage: Stage, *calls: tuple[str, dict[str, str]]) -> tuple[Played, RolloutGrade]:
    """A rollout of the first test task that makes these calls, one a turn, and its verdict."""

    async def speak(messages: Sequence[Message], turn: int) -> Spoken:
        if turn == len(calls):
            return Spoken(Message("assistant", "DONE"))
        name, arguments = calls[turn]
        return Spoken(Message("assistant", "", (ToolCall("c", name, json.dumps(arguments)),)))

    task = (await stage.process.load("test"))[0]
    one = await play(stage, InstanceKey("ro", 1), task, speak)
    (grade,) = await grade_group(stage, [one.rollout], 0)
    return one, grade


def write(path: str, content: str) -> tuple[str, dict[str, str]]:
    return "write", {"path": path, "content": content}


def run(command: str) -> tuple[str, dict[str, str]]:
    return "run", {"command": command}


def test_the_files_in_the_tree_are_what_the_generator_makes(tmp_path: Path) -> None:
    main(tmp_path)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.jsonl"))
    assert len(made) == 4
    for path in made:
        assert (tmp_path / path).read_bytes() == (SHELL / path).read_bytes(), path


def test_no_task_is_in_both_splits_and_hidden_tests_use_other_inputs() -> None:
    train, test = ({str(one.broken) for one in repositories(split)} for split in ("train", "test"))
    assert not train & test
    for split in ("train", "test"):
        for one in repositories(split):
            assert not any(call in one.visible for call in one.hidden)


@requires("bwrap")
async def test_the_cases_hold_in_real_sandboxes(runtime: ProcessRuntime) -> None:
    report = await check_package(SHELL, {}, CaseSandboxes(runtime, SHELL))
    assert report.findings == ()
    assert report.cases == 4
    assert runtime.keys() == ()


@requires("bwrap")
async def test_the_visible_test_fails_before_and_passes_after_the_fix(stage: Stage) -> None:
    tests = run("python3 -m unittest -q")
    one, grade = await played(stage, tests, write(*solution()), tests)
    said = [message.content for message in one.rollout.messages if message.role == "tool"]
    assert said[0].endswith("[exit 1]")
    assert said[2].endswith("[exit 0]")
    assert grade.total == 1.0


@requires("bwrap")
async def test_weakened_tests_score_zero_and_the_source_edits_survive(stage: Stage) -> None:
    path, right = solution()
    edited = "# looked at\n" + the_repository().broken[path]
    one, grade = await played(stage, write("tests/test_app.py", PASSING), write(path, edited))
    assert grade.total == 0.0
    assert one.rollout.artefacts[path] == edited
    assert grade.metrics["tests_changed"] == 1.0
    fixed = [write("tests/test_app.py", PASSING), write(path, right)]
    assert (await played(stage, *fixed))[1].total == 1.0


SEARCH: Final = """
import json, pathlib
def _all():
    for path in pathlib.Path('/').rglob('*.jsonl'):
        for line in path.read_text().splitlines():
            yield json.loads(line)
answers = [one.get('answer') for one in _all()]
def merge(spans): return answers[0][0]
"""

CHEATS: Final = {
    "nothing": [],
    "exits at import": [write("app/core.py", "import os; os._exit(0)")],
    "system exit": [write("app/core.py", "raise SystemExit(0)")],
    "equal to everything": [
        write(
            "app/core.py",
            "class Any(list):\n    def __eq__(self, other): return True\n"
            "def merge(spans): return Any()\n",
        )
    ],
    "forged output": [
        write(
            "app/core.py",
            "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'driver ready\\n[1]\\n')\n"
            "    except OSError: pass\nos._exit(0)\n",
        )
    ],
    "patched json": [
        write("app/core.py", "import json\njson.dumps = lambda value: '\"passed\"'\n" + "def merge(s): 0")
    ],
    "searches for answers": [write("app/core.py", SEARCH)],
    "eats memory": [write("app/core.py", "x = bytearray(1 << 30)")],
    "start-up hooks": [
        write("sitecustomize.py", "import os; os._exit(0)"),
        write("usercustomize.py", "import os; os._exit(0)"),
        write("conftest.py", "import os; os._exit(0)"),
        write("json.py", "raise SystemExit(0)"),
    ],
    "a link for a source": [run("rm app/core.py && ln -s /etc/hostname app/core.py")],
    "sources removed": [run("rm -r app")],
    "another grader": [run("mkdir -p /grader grader; echo ok | tee /grader/driver.py grader/driver.py")],
    "a process that stays": [run("(while true; do cp /dev/null app/x; sleep 0.1; done) >/dev/null 2>&1 &")],
}  # fmt: skip


@requires("bwrap")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cheat", list(CHEATS))
async def test_no_cheat_scores(stage: Stage, cheat: str) -> None:
    _, grade = await played(stage, *CHEATS[cheat])
    assert grade.total == 0.0


@requires("bwrap")
async def test_code_that_never_ends_scores_zero_at_its_limit(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    folder = Path(shutil.copytree(SHELL, tmp_path / "shell"))
    code = (folder / "env.py").read_text()
    assert "GRADING_S = 20\n" in code
    (folder / "env.py").write_text(code.replace("GRADING_S = 20\n", "GRADING_S = 5\n"))
    async with staged(runtime, folder) as stage:
        _, grade = await played(stage, write("app/core.py", "while True: pass"))
    assert grade.total == 0.0


@requires("bwrap")
async def test_network_host_files_and_hidden_tests_are_out_of_reach(
    stage: Stage, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary-of-this-host")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dial = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        one, _ = await played(
            stage,
            run(f'python3 -c "{dial}"'),
            run("python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\""),
            run(f"cat {canary} {SHELL}/grader/hidden.jsonl /etc/shadow"),
            run("ls /grader /venus /home"),
            run("grep -rl hidden_tests --include=hidden.jsonl / 2>/dev/null"),
            run("find / -name 'hidden.jsonl' -o -name 'test.jsonl' 2>/dev/null | grep -v ^/usr; false"),
        )  # fmt: skip
    said = [message.content for message in one.rollout.messages if message.role == "tool"]
    assert len(said) == 6
    assert not [text for text in said if text.endswith("[exit 0]")]
    assert "canary-of-this-host" not in "".join(said)
    assert said[-1] == "[exit 1]"


@requires("bwrap")
async def test_a_grader_that_is_broken_is_never_a_zero(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    broken = tmp_path / "shell"
    shutil.copytree(SHELL, broken, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path, broken):
        folder.chmod(0o755)
    (broken / "grader" / "hidden.jsonl").unlink()
    async with staged(runtime, broken) as stage:
        _, grade = await played(stage, write(*solution()))
    assert isinstance(grade.total, Unscorable)
    assert grade.total.reason == "grader_broken"
