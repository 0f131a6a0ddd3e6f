"""Reading a dataset's splits: rows that are tasks, lines that are not, what occurs twice or leaks.

Lines are read one at a time; of each row only two digests stay, so that a million rows fit.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from venusrl.env.messages import Task
from venusrl.env.wire import BadRecord, task_from_json
from workers.chores.row_text import ROW_ID_CHARS_MAX, key_of, normalised

LINE_BYTES_MAX: Final = 1 << 20
"""Of one row; a longer one would not fit a model's context by far."""

ROWS_MAX: Final = 1_000_000
"""Of a split: a larger one does not fit the memory of the node agent that holds it."""

LISTED_MAX: Final = 100
"""Findings of one code that are listed; the rest is counted."""

FIRST_SPLIT: Final = "train"
"""Looked at first, so that a leak is reported where it does harm."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a split: a task, or why it is none."""

    number: int
    task: Task | None
    fault: str = ""


def lines_of(path: Path, split: str) -> Iterator[Line]:
    """Lines that are not blank. A row without an id is named by its split and line."""
    with path.open("rb") as source:
        number = 0
        while raw := source.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX:
                yield Line(number, None, f"the line is longer than {LINE_BYTES_MAX} bytes")
                _skip_line(source, raw)
                continue
            if raw.strip():
                yield _line(number, raw, split)


def _skip_line(source: "object", raw: bytes) -> None:
    readline = source.readline  # type: ignore[attr-defined]  # a binary file
    while raw and not raw.endswith(b"\n"):
        raw = readline(LINE_BYTES_MAX)


def _line(number: int, raw: bytes, split: str) -> Line:
    try:
        record = json.loads(raw.decode("utf-8"))
        if isinstance(record, dict):
            record.setdefault("id", f"{split}-{number}")
        task = task_from_json(record)
        if len(task.id) > ROW_ID_CHARS_MAX:
            raise BadRecord(f"an id has at most {ROW_ID_CHARS_MAX} characters")
    except UnicodeDecodeError as error:
        return Line(number, None, f"no UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return Line(number, None, f"no JSON at column {error.colno}: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Line(number, None, str(error)[:300])
    return Line(number, task)


def text_of(task: Task) -> str:
    """What a model reads of a task."""
    return "\n".join(message.content for message in task.prompt)


@dataclass(slots=True)
class Report:
    """What was found, bounded; `passed` until an error is found."""

    passed: bool = True
    findings: list[dict[str, str]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, pointer: str, code: str, message: str, *, is_error: bool = False) -> None:
        """Note a finding; the first LISTED_MAX of a code are listed."""
        self.passed = self.passed and not is_error
        self._counts[code] += 1
        if self._counts[code] <= LISTED_MAX:
            severity = "error" if is_error else "warning"
            self.findings.append(
                {
                    "pointer": pointer,
                    "code": code,
                    "message": message,
                    "hint": HINTS.get(code, ""),
                    "severity": severity,
                }
            )

    @property
    def unlisted(self) -> dict[str, int]:
        """Findings beyond those listed, by code."""
        return {
            code: count - LISTED_MAX
            for code, count in sorted(self._counts.items())
            if count > LISTED_MAX
        }


HINTS: Final[Mapping[str, str]] = {
    "malformed_line": "A line is one JSON object with prompt, and optionally id, answer, metadata, files.",
    "duplicate_row": "Keep one of them: a task that occurs twice counts twice.",
    "leaked_row": "Take it out of one of the splits: a score on it says nothing.",
    "leaked_text": "Take it out of one of the splits unless the two differ in meaning.",
}


def check_splits(splits: Mapping[str, Path]) -> Report:
    """Look at all rows of all splits."""
    report = Report()
    exact: dict[int, tuple[str, int]] = {}
    alike: dict[int, tuple[str, int]] = {}
    for split in sorted(splits, key=lambda name: (name != FIRST_SPLIT, name)):
        _Splitwise(report, split, exact, alike).check(splits[split])
    return report


@dataclass(slots=True)
class _Splitwise:
    """One split against itself and those before it; the maps name where a text was first seen."""

    report: Report
    split: str
    exact: dict[int, tuple[str, int]]
    alike: dict[int, tuple[str, int]]
    ids: dict[str, int] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        """Look at all rows."""
        rows = 0
        for line in lines_of(path, self.split):
            pointer = f"/{self.split}/{line.number}"
            if line.task is None:
                message = f"Line {line.number}: {line.fault}."
                self.report.add(pointer, "malformed_line", message, is_error=True)
                continue
            rows += 1
            if rows > ROWS_MAX:
                message = f"The split has more than {ROWS_MAX} rows."
                self.report.add(f"/{self.split}", "too_many_rows", message, is_error=True)
                break
            self._check_id(pointer, line.number, line.task)
            self._check_text(pointer, line.number, text_of(line.task))
        self.report.rows[self.split] = rows
        if rows == 0:
            self.report.add(f"/{self.split}", "no_rows", "The split has no row.", is_error=True)

    def _check_id(self, pointer: str, number: int, task: Task) -> None:
        first = self.ids.setdefault(task.id, number)
        if first != number:
            message = f"Line {number} has the id {task.id!r} of line {first}."
            self.report.add(pointer, "duplicate_id", message, is_error=True)

    def _check_text(self, pointer: str, number: int, text: str) -> None:
        here = (self.split, number)
        same = self.exact.setdefault(key_of(text), here)
        near = self.alike.setdefault(key_of(normalised(text)), here)
        if same != here:
            self._say(pointer, same, "is the same as", ("duplicate_row", "leaked_row"))
        elif near != here:
            words = "is, but for case, spacing and punctuation,"
            self._say(pointer, near, words, ("duplicate_row", "leaked_text"))

    def _say(
        self, pointer: str, first: tuple[str, int], words: str, codes: tuple[str, str]
    ) -> None:
        split, line = first
        number = pointer.rpartition("/")[2]
        if split == self.split:
            message = f"The prompt of line {number} {words} that of line {line}."
            self.report.add(pointer, codes[0], message)
            return
        message = (
            f"The prompt of line {number} of {self.split} {words} that of line {line} of {split}."
        )
        self.report.add(pointer, codes[1], message)
