"""A how-to as a test: its files are written, its commands run, its output compared by shape.

A fenced block after `<!-- file: PATH -->` is that file. In `console` blocks lines that begin with `$ `
are commands of one shell; lines below a command are its output, compared with numbers and hashes taken
out. `<!-- needs a platform -->` divides the quick part from the rest.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

FENCE: Final = re.compile(r"(?:<!-- (?P<note>.*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)
PLATFORM: Final = "needs a platform"
NUMBER: Final = re.compile(r"-?\d+(\.\d+)?%?|sha256:\S+")

COMMAND_WITHIN_S: Final = 900.0
"""The longest is a whole training on a busy machine."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file that the reader writes."""

    path: str
    text: str


@dataclass(slots=True)
class Command:
    """A line of the reader, and what it must print; nothing: not compared."""

    line: str
    expected: list[str] = field(default_factory=list)


Step = WriteFile | Command


def steps_of(document: Path) -> tuple[list[Step], list[Step]]:
    """What is done without a platform, and what with one."""
    parts: tuple[list[Step], list[Step]] = ([], [])
    part = parts[0]
    for match in FENCE.finditer(document.read_text()):
        note = match["note"] or ""
        part = parts[1] if note == PLATFORM else part
        if note.startswith("file: "):
            part.append(WriteFile(note.removeprefix("file: "), match["text"]))
        elif match["kind"] == "console":
            part += _commands(match["text"])
    return parts


def _commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ ")))
        else:
            found[-1].expected.append(line)
    return found


def shape(lines: list[str]) -> list[str]:
    """Lines without their numbers and the widths that depend on them."""
    return [re.sub(r"\s+", " ", NUMBER.sub("N", line)).strip() for line in lines]


class Reader:
    """Somebody with a shell in an empty folder, to whom `venus` is this tree's."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.said: dict[str, str] = {}
        programs = folder / ".bin"
        programs.mkdir()
        venus = programs / "venus"
        start = "from venusrl.cli import main; main()"
        venus.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
        venus.chmod(0o755)
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self._environ = {
            **kept,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        }

    def write(self, step: WriteFile) -> None:
        """Write a file as the how-to has it."""
        path = self.folder / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text)

    def run(self, step: Command, exports: Mapping[str, str] | None = None) -> int:
        """Run a line and compare what it prints; its exit status. `export` lines are remembered."""
        if step.line.startswith("export "):
            name, _, text = step.line.removeprefix("export ").partition("=")
            self._environ[name] = (exports or {}).get(name, text)
            return 0
        done = subprocess.run(
            ["bash", "-c", step.line],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        self.said[step.line] = done.stdout
        told = f"{step.line}\n{done.stdout}\n{done.stderr}"
        if step.expected:
            assert shape(done.stdout.splitlines()) == shape(step.expected), told
        else:
            assert done.returncode == 0, told
        return done.returncode
