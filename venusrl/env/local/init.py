"""Writes a small working package: a class, tasks, cases, and a README that says what comes next."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
"""What an environment may be called, here and on the platform."""

TEST_EVERY: Final = 5
"""Every so many questions one is held out."""

QUESTION: Final = "State the final answer to the following arithmetic problem: {} + {} ="
"""Words that the platform's smallest model knows, so that a first job has something to learn."""

STARTER: Final = ("env.py", "venus.toml", "README.md", "cases/verdicts.jsonl")


class InitRefused(Exception):
    """The package cannot be written; the message says why."""


def write_package(name: str, parent: Path) -> Path:
    """Make `parent/name`. Raises InitRefused; never writes over anything."""
    if not NAME.match(name):
        raise InitRefused(
            f"{name!r} is no name: lower-case letters, digits, - and _, a letter first"
        )
    folder = parent / name
    if folder.exists() and any(folder.iterdir()):
        raise InitRefused(f"{folder} is there already and not empty")
    starter = resources.files("venusrl.env.starter")
    for path in STARTER:
        text = starter.joinpath(f"{path}.in").read_text(encoding="utf-8")
        _write(folder / path, text.replace("NAME", name).replace("Class", class_name(name)))
    for split, lines in _tasks().items():
        _write(folder / "tasks" / f"{split}.jsonl", "".join(lines))
    return folder


def class_name(name: str) -> str:
    """`my-env` as `MyEnv`; a name of Python's own or of the kit gets a suffix."""
    word = "".join(part[:1].upper() + part[1:] for part in re.split("[-_]+", name))
    taken = ("Environment", "Rollout", "Value", "None", "True", "False", "Task", "Message", "Turn")
    return f"{word}Env" if word in taken else word


def _tasks() -> dict[str, list[str]]:
    """All sums of two digits, split by position, the same at every run."""
    splits: dict[str, list[str]] = {"train": [], "test": []}
    for number in range(100):
        left, right = divmod(number, 10)
        split = "test" if (7 * left + 3 * right) % TEST_EVERY == 0 else "train"
        record = {
            "id": f"{split}-{len(splits[split]):03d}",
            "prompt": QUESTION.format(left, right),
            "answer": str(left + right),
        }
        splits[split].append(json.dumps(record) + "\n")
    return splits


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
