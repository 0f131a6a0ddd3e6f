"""Validation: the shipped packages pass, and each mistake is found where it is."""

from pathlib import Path

import pytest

from environments.checks import check_package
from tests.integration.environments.helpers import CALC, CHAOS, REASONING_GYM, write_package
from tests.support.requirements import requires
from tests.support.sandbox_port import RecordingSandboxes
from venusrl.env.host.checks import CheckReport

pytestmark = requires("bwrap")

GRADED = """
class Env(Environment):
    @reward()
    async def score(self, rollout):
        return float(rollout.answer_text)
"""

UNSCORABLE_CASE = (
    '{"task": "train-0", "turns": [{"content": "x"}], '
    '"expect": {"total": {"unscorable": "raised"}, "end": "done"}}'
)


async def check(folder: Path) -> CheckReport:
    return await check_package(folder, {}, RecordingSandboxes())


def messages(report: CheckReport) -> str:
    return "\n".join(f"{one.file}{one.pointer} {one.message}" for one in report.findings)


@pytest.mark.parametrize("folder", [CALC, CHAOS, REASONING_GYM])
async def test_a_shipped_package_passes_and_its_cases_are_played(folder: Path) -> None:
    report = await check(folder)
    assert report.passed, messages(report)
    assert report.cases >= 2
    assert all(count > 0 for count in report.tasks.values())


async def test_calc_has_nothing_to_mend() -> None:
    report = await check(CALC)
    assert report.findings == ()
    assert report.tasks == {"train": 2048, "test": 512}
    assert [tool["name"] for tool in report.info.tools] == ["calculator"]


async def test_without_sandboxes_cases_wait_and_that_is_said() -> None:
    report = await check_package(CALC, {})
    assert report.passed
    assert report.cases == 0
    assert "no sandbox is at hand" in messages(report)


async def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    report = await check(tmp_path)
    assert not report.passed
    assert report.findings[0].file == "venus.toml"


async def test_a_failing_import_points_at_the_module(tmp_path: Path) -> None:
    write_package(tmp_path, "import no_such_module\n")
    report = await check(tmp_path)
    assert not report.passed
    assert report.findings[0].file == "env.py"


async def test_a_package_without_reward_is_refused(tmp_path: Path) -> None:
    write_package(tmp_path, "class Env(Environment): pass\n")
    report = await check(tmp_path)
    assert not report.passed
    assert "no component has a weight" in messages(report)


async def test_what_is_not_served_is_refused_not_ignored(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED, 'secrets = ["KEY"]\n[network]\nallow = ["example.org"]\n')
    (tmp_path / "requirements.txt").write_text("numpy==2.0\n")
    report = await check(tmp_path)
    files = {(one.file, one.pointer) for one in report.findings if one.severity == "error"}
    assert files == {
        ("requirements.txt", ""),
        ("venus.toml", "/network/allow"),
    }


async def test_a_variable_that_is_not_given_is_a_warning(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED, 'secrets = ["KEY"]\n')
    report = await check(tmp_path)
    (warning,) = [one for one in report.findings if one.file == "venus.toml"]
    assert (warning.pointer, warning.severity) == ("/secrets/0", "warning")
    given = await check_package(tmp_path, {}, None, secrets={"KEY": "value-of-the-key"})
    assert [one for one in given.findings if one.file == "venus.toml"] == []


async def test_bad_task_files_are_found_by_line(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED)
    (tmp_path / "tasks" / "train.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"id": 3}\n')
    (tmp_path / "tasks" / "test.jsonl").unlink()
    report = await check(tmp_path)
    assert "train.jsonl:2" in messages(report)
    assert "no file" in messages(report)


async def test_empty_prompts_and_duplicate_ids_are_found(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED)
    line = '{"id": "a", "prompt": "x"}\n'
    (tmp_path / "tasks" / "train.jsonl").write_text('{"id": "a", "prompt": " "}\n')
    (tmp_path / "tasks" / "test.jsonl").write_text(line + line)
    report = await check(tmp_path)
    assert "task a has an empty prompt" in messages(report)
    assert "two tasks have the id a" in messages(report)


async def test_a_load_that_differs_each_time_is_found(tmp_path: Path) -> None:
    source = f"""
{GRADED}
    @classmethod
    def load(cls, split, config):
        import random
        yield Task(f"t{{random.random()}}", (Message("user", split),))
"""
    write_package(tmp_path, source)
    report = await check(tmp_path)
    assert not report.passed
    assert "loads differently each time" in messages(report)


async def test_splits_that_share_prompts_are_warned_of(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED)
    for split in ("train", "test"):
        (tmp_path / "tasks" / f"{split}.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    report = await check(tmp_path)
    assert report.passed
    assert "1 prompts stand in both splits" in messages(report)


async def test_a_case_that_scores_otherwise_is_a_finding_at_its_line(tmp_path: Path) -> None:
    write_package(tmp_path, GRADED, "sandbox = false\n")
    (tmp_path / "cases").mkdir()
    lines = [
        '{"task": "train-0", "turns": [{"content": "1"}], "expect": {"total": 1}}',
        '{"task": "train-0", "turns": [{"content": "0"}], "expect": {"total": 1}}',
        '{"task": "nowhere", "turns": [{"content": "0"}]}',
        UNSCORABLE_CASE,
        '{"task": "train-0", "turns": [{"content": "0", "replies": ["hi"]}]}',
    ]
    (tmp_path / "cases" / "a.jsonl").write_text("\n".join(lines))
    report = await check(tmp_path)
    found = [(one.file, one.pointer) for one in report.findings if one.severity == "error"]
    assert found == [
        ("cases/a.jsonl", "/2/expect/total"),
        ("cases/a.jsonl", "/3/task"),
        ("cases/a.jsonl", "/5/turns/0/replies"),
    ]
