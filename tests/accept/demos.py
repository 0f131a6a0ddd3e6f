"""Whole demos as child processes, one after the other in one home, and what they measured."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).resolve().parents[2]

DEMO_WITHIN_S: Final = 900.0
"""A demo that needs longer is broken, whatever the machine."""

COLUMNS: Final = (
    "seed", "control", "state", "score_before", "score_after", "rise", "train_s", "evaluation_s",
    "time_to_ready_s", "time_to_first_step_s", "exit",
)  # fmt: skip


def demo_environ(**changes: str) -> Mapping[str, str]:
    """Our environment without any platform of ours in it."""
    own = ("VENUS_", "DATABASE_URL", "BROKER_URL", "OBJECT_STORE_URL", "KEEP")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "VENUS_API_PORT": "0", **changes}


@dataclass(slots=True)
class Demos:
    """Runs demos in one home; `rows` are the summaries in order."""

    home: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, *arguments: str) -> dict[str, Any]:
        """One demo; its summary with the exit status."""
        with tempfile.TemporaryDirectory() as folder:
            summary = Path(folder) / "summary.json"
            command = [sys.executable, "-m", "supervisor.demo", "--home", str(self.home)]
            done = subprocess.run(
                [*command, "--summary", str(summary), *arguments],
                cwd=TREE,
                env=demo_environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=DEMO_WITHIN_S,
                check=False,
            )
            assert summary.exists(), f"exit {done.returncode}\n{done.stdout[-6000:]}"
            row: dict[str, Any] = json.loads(summary.read_text()) | {"exit": done.returncode}
        self.rows.append(row)
        sys.stdout.write(line_of(row) + "\n")
        return row


def line_of(row: Mapping[str, Any]) -> str:
    """A row of the table, aligned with `header`."""
    cells = [row.get(name) for name in COLUMNS]
    shown = [
        f"{cell:.3f}" if isinstance(cell, float) else "-" if cell is None else str(cell)
        for cell in cells
    ]
    return "  ".join(cell.rjust(len(name)) for cell, name in zip(shown, COLUMNS, strict=True))


def header() -> str:
    """The table's head."""
    return "  ".join(COLUMNS)
