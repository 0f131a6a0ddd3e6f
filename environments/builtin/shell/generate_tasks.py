"""Writes `tasks/*.jsonl`, `grader/hidden.jsonl` and `cases/verdicts.jsonl`; the same at every run.

    python -m environments.builtin.shell.generate_tasks [FOLDER]

A task is a repository made of one of `repositories.KINDS` with drawn constants and one bug. Bugs of the
test split never occur in training. Of each task is made sure that a visible test fails, that hidden
tests fail too, and that the two use different inputs, so that remembering the visible ones is no fix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType

from .repositories import KINDS, Bug, Call, Kind

FOLDER = Path(__file__).parent
SEED = 20261129
VARIANTS = {"train": 5, "test": 4}
"""Drawn repositories of each bug."""

VISIBLE_TESTS = 4
HIDDEN_TESTS = 8
SHOWN = 4
"""Hidden tests that fail on the broken sources; the others guard what works."""

DRAWS_MAX = 1000
"""Inputs drawn until enough of them show the bug."""

PROMPT = (
    "A test of this repository fails: see it with `python3 -m unittest -q`. Find the bug in app/ and"
    " fix it there; do not change the tests. Answer DONE when it is fixed."
)


@dataclass(frozen=True, slots=True)
class Repository:
    """One drawn repository: its files with the bug, right files, and its tests."""

    task: str
    right: Mapping[str, str]
    broken: Mapping[str, str]
    visible: tuple[Call, ...]
    hidden: tuple[Call, ...]


def repositories(split: str) -> Iterator[Repository]:
    """All repositories of a split."""
    number = 0
    for kind in KINDS:
        bugs = kind.bugs[-1:] if split == "test" else kind.bugs[:-1]
        for bug in bugs:
            for variant in range(VARIANTS[split]):
                random = Random(f"{SEED}:{split}:{kind.name}:{bug.wrong}:{variant}")
                yield draw(f"{split}-{number:03d}", kind, bug, random)
                number += 1


def draw(task: str, kind: Kind, bug: Bug, random: Random) -> Repository:
    """One repository; its inputs are drawn until the bug shows in both kinds of tests."""
    constants = kind.constants(random)
    right = {f"app/{name}.py": text.format(**constants) for name, text in kind.sources.items()}
    path = f"app/{bug.module}.py"
    before, after = bug.right.format(**constants), bug.wrong.format(**constants)
    assert right[path].count(before) == 1, f"{kind.name}: {before!r} must stand there once"
    broken = {**right, path: right[path].replace(before, after)}
    shows: list[Call] = []
    same: list[Call] = []
    for _ in range(DRAWS_MAX):
        call = kind.call(random)
        if call in shows or call in same:
            continue
        (shows if results(right, [call]) != results(broken, [call]) else same).append(call)
        if len(shows) > SHOWN and len(same) >= VISIBLE_TESTS - 1 + HIDDEN_TESTS - SHOWN:
            break
    assert len(shows) > SHOWN, f"{kind.name}: {bug.wrong!r} does not show"
    quiet = VISIBLE_TESTS - 1
    visible = (*same[:quiet], shows[0])
    hidden = (*same[quiet : quiet + HIDDEN_TESTS - SHOWN], *shows[1 : 1 + SHOWN])
    return Repository(task, right, broken, visible, hidden)


def results(files: Mapping[str, str], calls: list[Call]) -> list[object]:
    """What the calls give on these files; an exception is a result."""
    package = ModuleType("app")
    modules = {"app": package}
    for name in ("core", "extra"):
        modules[f"app.{name}"] = ModuleType(f"app.{name}")
    saved = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        for name in ("core", "extra"):
            exec(files[f"app/{name}.py"], vars(modules[f"app.{name}"]))
        return [_result(modules[call.module], call) for call in calls]
    finally:
        for name, module in saved.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def _result(module: ModuleType, call: Call) -> object:
    try:
        result: object = json.loads(json.dumps(vars(module)[call.function](*call.arguments)))
        return result
    except Exception as error:  # noqa: BLE001 - a bug may raise anything
        return {"raised": type(error).__name__}


def test_file(repository: Repository) -> str:
    """The visible tests as a unittest module."""
    lines = ["import unittest", "", "from app import core, extra", "", ""]
    lines += ["class AppTest(unittest.TestCase):"]
    wanted = results(repository.right, list(repository.visible))
    for number, (call, value) in enumerate(zip(repository.visible, wanted, strict=True), start=1):
        arguments = ", ".join(repr(one) for one in call.arguments)
        name = call.module.rpartition(".")[2]
        lines += [f"    def test_{call.function}_{number}(self):"]
        lines += [f"        self.assertEqual({name}.{call.function}({arguments}), {value!r})", ""]
    return "\n".join(lines)


def task_record(repository: Repository) -> dict[str, object]:
    """A line of `tasks/*.jsonl`; the answer is what the hidden tests must give."""
    files = {
        "app/__init__.py": "",
        **repository.broken,
        "tests/__init__.py": "",
        "tests/test_app.py": test_file(repository),
    }
    answer = results(repository.right, list(repository.hidden))
    return {"id": repository.task, "prompt": PROMPT, "answer": answer, "files": files}


def hidden_record(repository: Repository) -> dict[str, object]:
    """A line of `grader/hidden.jsonl`: inputs only."""
    calls = [[one.module, one.function, list(one.arguments)] for one in repository.hidden]
    return {"task": repository.task, "calls": calls}


def case_records(repository: Repository) -> Iterator[dict[str, object]]:
    """The reference solution, nothing done, and tests weakened instead of the bug fixed."""
    path = next(one for one in repository.right if repository.right[one] != repository.broken[one])
    passing = "import unittest\n\n\nclass AppTest(unittest.TestCase):\n    def test(self):\n        pass\n"
    edits = {
        "the reference solution": ([(path, repository.right[path])], 1.0),
        "nothing done": ([], 0.0),
        "the visible tests weakened": ([("tests/test_app.py", passing)], 0.0),
        "fixed, and the visible tests weakened": (
            [(path, repository.right[path]), ("tests/test_app.py", passing)],
            1.0,
        ),
    }
    for name, (writes, total) in edits.items():
        calls = [
            {"name": "write", "arguments": {"path": path, "content": text}} for path, text in writes
        ]
        turns: list[dict[str, object]] = [{"tool_calls": calls}] if calls else []
        yield {
            "name": name,
            "split": "test",
            "task": repository.task,
            "turns": [*turns, {"content": "DONE"}],
            "expect": {"end": "done", "total": total},
        }


def write(path: Path, records: list[dict[str, object]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="ascii")


def main(folder: Path = FOLDER) -> None:
    """Write all files below the package's folder."""
    hidden: list[dict[str, object]] = []
    for split in VARIANTS:
        made = list(repositories(split))
        write(folder / "tasks" / f"{split}.jsonl", [task_record(one) for one in made])
        hidden += [hidden_record(one) for one in made]
        if split == "test":
            write(folder / "cases" / "verdicts.jsonl", list(case_records(made[0])))
    write(folder / "grader" / "hidden.jsonl", hidden)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
