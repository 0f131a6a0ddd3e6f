"""Arming failpoints in running processes, and knowing that they fired."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import failpoints


@dataclass(frozen=True, slots=True)
class ArmedFailpoints:
    """The folder through which a test and the processes under test share failpoints."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Variables for the processes under test."""
        return {
            failpoints.ALLOW_VARIABLE: "1",
            failpoints.FILE_VARIABLE: str(self.folder / "armed"),
        }

    def arm(self, *entries: str) -> None:
        """Replace what is armed; takes effect at each process's next hit."""
        text = "\n".join(entries)
        failpoints.parse(text)  # a misspelt entry fails the test, not the process
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = self.folder / "armed.new"
        waiting.write_text(text)
        os.replace(waiting, self.folder / "armed")

    def disarm(self) -> None:
        """Arm nothing; what has fired stays on record."""
        (self.folder / "armed").unlink(missing_ok=True)

    def fired(self, name: str | None = None) -> list[dict[str, Any]]:
        """Firings so far, oldest first; only those of one failpoint if named."""
        log = self.folder / "fired.jsonl"
        if not log.exists():
            return []
        records = [json.loads(line) for line in log.read_text().splitlines()]
        return [record for record in records if name in (None, record["name"])]
