"""Where a finding stands: `file:line` for a person and an editor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from venusrl.env.host.manifest import MANIFEST_NAME, Finding

RAISED: Final = re.compile(r" at ([\w./-]+\.py):(\d+)$")
"""How the runner says where the package's code raised."""

LINE: Final = re.compile(r"^/(\d+)(/|$)")
"""Pointers into line-wise files and code start with the line."""

TASK_LINE: Final = re.compile(r"(\w+\.jsonl):(\d+)")
"""How a bad task line is named in a message."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file of the package and a line of it, 0 where none is known."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def place_of(finding: Finding, folder: Path) -> Place:
    """The line of a finding."""
    if raised := RAISED.search(finding.message):
        return Place(raised.group(1), int(raised.group(2)))
    if finding.file == MANIFEST_NAME:
        return Place(finding.file, _manifest_line(folder, finding.pointer))
    named = TASK_LINE.search(finding.message)
    if named and finding.file.endswith(named.group(1)):
        return Place(finding.file, int(named.group(2)))
    line = LINE.match(finding.pointer)
    return Place(finding.file or MANIFEST_NAME, int(line.group(1)) if line else 0)


def _manifest_line(folder: Path, pointer: str) -> int:
    """The line that sets the pointer's last key; 0 for one that is missing."""
    keys = [part for part in pointer.split("/") if part and not part.isdigit()]
    path = folder / MANIFEST_NAME
    if not keys or not path.is_file():
        return 0
    pattern = re.compile(rf"^\s*\[?{re.escape(keys[-1])}\]?\s*(=|$)")
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        if pattern.match(line):
            return number
    return 0
