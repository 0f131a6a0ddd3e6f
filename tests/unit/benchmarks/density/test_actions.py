"""Scripts of the density run: right ones fix the bug, others do not."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.density.actions import GROUP_SIZE, changed, fix, script_of, spoil, tasks
from benchmarks.density.model import CHARACTERS, said
from environments.builtin.shell.generate_tasks import Repository, results


def after(task: Repository, command: str, folder: Path) -> dict[str, str]:
    """Sources of a repository in which a command ran."""
    for path, text in task.broken.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    return {path: (folder / path).read_text() for path in task.broken}


@pytest.mark.parametrize("number", range(0, len(tasks()), 7))
def test_a_fix_gives_what_the_hidden_tests_want(number: int, tmp_path: Path) -> None:
    task = tasks()[number]
    wanted = results(task.right, list(task.hidden))
    assert results(task.broken, list(task.hidden)) != wanted
    assert results(after(task, fix(task), tmp_path), list(task.hidden)) == wanted


def test_a_spoiled_file_cannot_be_compiled(tmp_path: Path) -> None:
    task = tasks()[0]
    files = after(task, spoil(task), tmp_path)
    for path in changed(task):
        with pytest.raises(SyntaxError):
            compile(files[path], path, "exec")


def test_one_of_each_group_is_right_and_all_is_a_function_of_the_place() -> None:
    for ordinal in range(2 * len(tasks())):
        group = [script_of(3, ordinal, index) for index in range(GROUP_SIZE)]
        assert [one.is_right for one in group] == [True, False]
        assert group == [script_of(3, ordinal, index) for index in range(GROUP_SIZE)]
    drawn = {script_of(seed, 5, 1).commands for seed in range(20)}
    assert len(drawn) > 5


def test_the_model_can_say_every_command() -> None:
    for ordinal in range(len(tasks())):
        for index in range(GROUP_SIZE):
            commands = script_of(1, ordinal, index).commands
            assert set("".join(commands)) <= set(CHARACTERS)
            assert len(said(commands)) == len(commands) + 1
