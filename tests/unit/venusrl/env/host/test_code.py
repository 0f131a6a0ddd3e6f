"""What is said of code without running it."""

from pathlib import Path

import pytest

from venusrl.env.host.code import check_code


def found(folder: Path, text: str, name: str = "env.py") -> list[tuple[str, str, str]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [(one.file, one.pointer, one.severity) for one in check_code(folder)]


def test_the_standard_library_the_kit_and_own_modules_are_served(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "parts").mkdir()
    text = "import json\nfrom venusrl.env import tool\nimport helpers\nfrom parts import x\nfrom . import y\n"
    assert found(tmp_path, text) == []


@pytest.mark.parametrize("line", ["import numpy as np", "from torch.nn import Module"])
def test_what_is_not_served_is_warned_of_where_it_stands(tmp_path: Path, line: str) -> None:
    assert found(tmp_path, f"\ndef f():\n    {line}\n") == [("env.py", "/3", "warning")]


def test_a_syntax_error_is_an_error_at_its_line(tmp_path: Path) -> None:
    assert found(tmp_path, "x = 1\ndef f(:\n") == [("env.py", "/2", "error")]


@pytest.mark.parametrize("name", ["grader/run.py", "tests/test_it.py", ".venv/lib/x.py"])
def test_code_that_runs_elsewhere_is_not_judged(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, "import numpy\n", name) == []
