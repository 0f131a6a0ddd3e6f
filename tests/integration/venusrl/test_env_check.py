"""`venus env init` and `venus env test`: real environment processes, no server."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.integration.environments.helpers import CALC, write_package
from tests.support.requirements import requires
from tests.support.wheels import write_wheel
from venusrl.cli.app import app

GRADED = """
class Env(Environment):
    @reward()
    async def score(self, rollout):
        return float(rollout.answer_text)
"""


def venus(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["env", *arguments])


def checked(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and document of `venus env test`."""
    done = venus("test", str(folder), "--json", "--plain", *options)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.exit_code, document


def places(document: dict[str, Any], severity: str = "error") -> list[tuple[str, int]]:
    return [
        (one["file"], one["line"]) for one in document["findings"] if one["severity"] == severity
    ]


def test_a_new_package_passes_its_own_test(tmp_path: Path) -> None:
    assert venus("init", "my-sums", "--in", str(tmp_path)).exit_code == 0
    status, document = checked(tmp_path / "my-sums")
    assert status == 0
    assert document["findings"] == []
    assert (document["cases"], document["tasks"]) == (2, {"train": 80, "test": 20})
    assert "venus env test my-sums" in (tmp_path / "my-sums" / "README.md").read_text()
    assert "class MySums(Environment)" in (tmp_path / "my-sums" / "env.py").read_text()


@requires("bwrap")
def test_a_new_package_passes_confined_too(tmp_path: Path) -> None:
    venus("init", "sums", "--in", str(tmp_path))
    for folder in (tmp_path, tmp_path / "sums"):
        folder.chmod(0o755)
    done = venus("test", str(tmp_path / "sums"), "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["passed"], document["isolated"]) == (0, True, True)


@pytest.mark.parametrize("name", ["Sums", "1st", "a b", "../x", ""])
def test_a_bad_name_is_refused_and_writes_nothing(tmp_path: Path, name: str) -> None:
    done = venus("init", name, "--in", str(tmp_path))
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_init_never_writes_over_a_package(tmp_path: Path) -> None:
    venus("init", "sums", "--in", str(tmp_path))
    (tmp_path / "sums" / "env.py").write_text("mine")
    assert venus("init", "sums", "--in", str(tmp_path)).exit_code == 2
    assert (tmp_path / "sums" / "env.py").read_text() == "mine"


def test_without_isolation_that_is_said_once() -> None:
    done = venus("test", str(CALC), "--plain")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("not isolated") == 1


def test_each_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED, "sandbox = false\n[limits]\nmax_turn = 3\n")
    status, document = checked(tmp_path)
    assert (status, places(document)) == (1, [("venus.toml", 7)])
    assert document["findings"][0]["hint"] == "did you mean max_turns?"


def test_a_syntax_error_and_a_failing_import_have_their_line(tmp_path: Path) -> None:
    write_package(tmp_path, "class Env(Environment)\n    pass\n")
    assert places(checked(tmp_path)[1]) == [("env.py", 3)]
    write_package(tmp_path, "\n\nraise RuntimeError('no')\n")
    assert places(checked(tmp_path)[1]) == [("env.py", 5)]


def test_an_import_that_is_not_served_is_warned_of_at_its_line(tmp_path: Path) -> None:
    body = "try:\n    import numpy\nexcept ImportError:\n    pass\n" + GRADED
    write_package(tmp_path, body, "sandbox = false\n")
    status, document = checked(tmp_path)
    assert status == 0
    assert ("env.py", 4) in places(document, "warning")


def test_a_bad_task_and_a_case_that_scores_otherwise_have_their_line(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED, "sandbox = false\n")
    (tmp_path / "cases").mkdir()
    lines = [
        '{"task": "train-0", "turns": [{"content": "1"}], "expect": {"total": 1}}',
        '{"task": "train-0", "turns": [{"content": "0"}], "expect": {"total": 1}}',
    ]
    (tmp_path / "cases" / "a.jsonl").write_text("\n".join(lines))
    assert places(checked(tmp_path)[1]) == [("cases/a.jsonl", 2)]
    (tmp_path / "tasks" / "train.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"id": 3}\n')
    assert ("tasks/train.jsonl", 2) in places(checked(tmp_path)[1])


def test_findings_read_like_a_compilers(tmp_path: Path) -> None:
    write_package(tmp_path, "class Env(Environment)\n    pass\n")
    done = venus("test", str(tmp_path), "--plain")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0].startswith("env.py:3: error: not Python")


def test_a_missing_folder_is_usage(tmp_path: Path) -> None:
    assert venus("test", str(tmp_path / "nowhere")).exit_code == 2


NEEDY = """
import tinydep

class Env(Environment):
    @reward()
    async def score(self, rollout):
        return float(rollout.answer_text == tinydep.VERSION)
"""


@pytest.fixture
def needy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a pin, wheels in a folder, and a cache of its own."""
    monkeypatch.setenv("VENUS_PACKAGE_FOLDER", str(tmp_path / "wheels"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_wheel(tmp_path / "wheels", "tinydep", "1.2")
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, NEEDY, "sandbox = false\n")
    (folder / "requirements.txt").write_text("\ntinydep==1.2\n")
    (folder / "cases").mkdir()
    case = {"task": "train-0", "turns": [{"content": "1.2"}], "expect": {"total": 1}}
    (folder / "cases" / "all.jsonl").write_text(json.dumps(case))
    return folder


def test_requirements_are_built_once_for_this_machine(needy: Path, tmp_path: Path) -> None:
    status, document = checked(needy)
    assert (status, places(document), document["cases"]) == (0, [], 1)
    assert not (needy / "tinydep.py").exists()
    for wheel in (tmp_path / "wheels").iterdir():
        wheel.unlink()
    assert checked(needy)[0] == 0


def test_a_pin_that_cannot_be_had_is_a_finding_at_its_line(needy: Path) -> None:
    (needy / "requirements.txt").write_text("\ntinydep==1.3\nother>=1\n")
    status, document = checked(needy)
    assert (status, places(document)) == (1, [("requirements.txt", 3)])
    (needy / "requirements.txt").write_text("\ntinydep==1.3\n")
    status, document = checked(needy)
    assert (status, places(document)) == (1, [("requirements.txt", 2)])
    assert "no wheel of tinydep" in document["findings"][0]["message"]


NEEDS = """
class Env(Environment):
    @reward()
    async def score(self, rollout):
        return float(os.environ.get("TOKEN") == "value-of-the-token" and "OTHER" not in os.environ)
"""


def test_variables_that_the_package_needs_come_from_the_shell_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, NEEDS, 'secrets = ["TOKEN"]\nsandbox = false\n')
    (tmp_path / "cases").mkdir()
    case = {"name": "c", "split": "test", "task": "test-0", "turns": [{"content": "x"}]}
    (tmp_path / "cases" / "c.jsonl").write_text(json.dumps(case | {"expect": {"total": 1.0}}))
    monkeypatch.setenv("OTHER", "another-value")
    monkeypatch.delenv("TOKEN", raising=False)
    status, document = checked(tmp_path)
    assert status == 1
    warnings = [one["message"] for one in document["findings"] if one["severity"] == "warning"]
    assert any("TOKEN is not set here" in one for one in warnings)
    monkeypatch.setenv("TOKEN", "value-of-the-token")
    status, document = checked(tmp_path)
    assert status == 0, document
