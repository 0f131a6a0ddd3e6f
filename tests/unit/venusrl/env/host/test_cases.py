"""Scripted cases of a package are read strictly."""

from pathlib import Path

import pytest

from venusrl.env.host.cases import read_cases
from venusrl.env.messages import Task, ToolCall


def write(folder: Path, *lines: str) -> Path:
    (folder / "cases").mkdir()
    (folder / "cases" / "a.jsonl").write_text("\n".join(lines))
    return folder


def test_a_case_is_read_with_its_turns_and_expectations(tmp_path: Path) -> None:
    line = (
        '{"name": "n", "split": "test", "task": "t", "turns": ['
        '{"tool_calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": "{,"}],'
        ' "replies": ["1", "2"]}, {"content": "it is $answer"}],'
        ' "expect": {"end": "done", "total": 1.0, "components": {"c": 0.5}}}'
    )
    (case,), findings = read_cases(write(tmp_path, "", line))
    assert findings == []
    assert (case.file, case.line, case.split, case.end) == ("cases/a.jsonl", 2, "test", "done")
    assert case.expected == {"c": 0.5, "total": 1.0}
    calls = case.turns[0].tool_calls
    assert calls == (ToolCall("call_0", "a", '{"x": 1}'), ToolCall("call_1", "b", "{,"))
    assert case.turns[1].message(Task("t", (), "49")).content == "it is 49"
    assert case.turns[1].message(Task("t", (), [1])).content == "it is [1]"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"task": "t"}',
        '{"task": "t", "turns": []}',
        '{"task": "t", "turns": [{"text": "x"}]}',
        '{"task": "t", "turns": [{"finish": "never"}]}',
        '{"task": "t", "turns": [{}], "expect": {"score": 1}}',
        '{"task": "t", "turns": [{"tool_calls": [{}]}]}',
    ],
)
def test_a_bad_case_is_a_finding_at_its_line(tmp_path: Path, line: str) -> None:
    cases, (finding,) = read_cases(write(tmp_path, '{"task": "t", "turns": [{}]}', line))
    assert len(cases) == 1
    assert (finding.file, finding.pointer) == ("cases/a.jsonl", "/2")


def test_a_package_without_cases_has_none(tmp_path: Path) -> None:
    assert read_cases(tmp_path) == ([], [])
