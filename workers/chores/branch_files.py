"""The files of a sandbox at a border: a sum of each, so that two continuations can be compared."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from sandboxes.ports import Sandbox
from venusrl.env.sandbox import ExecRequest, ExecResult, SandboxError

LIST_S: Final = 20.0
"""A folder that takes longer is not compared."""

LIST_FILES: Final = ("sh", "-c", "find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2")
"""Of the work folder, with every file below it. Nothing is written."""

DIFFERING_MAX: Final = 20
"""Paths that a report names."""


async def files_of(sandbox: Sandbox) -> Mapping[str, str] | None:
    """Sums by path; None where they cannot be listed. Raises SandboxError `lost`."""
    try:
        listed = await sandbox.call(ExecRequest(LIST_FILES, timeout_s=LIST_S))
    except SandboxError as error:
        if error.reason == "lost":
            raise
        return None
    assert isinstance(listed, ExecResult)
    if listed.exit_code != 0 or listed.timed_out or listed.truncated_bytes:
        return None
    pairs = (line.split("  ", 1) for line in listed.text.splitlines())
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def sum_of(files: Mapping[str, str]) -> str:
    """One sum of all names and contents."""
    text = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def differing(listings: Sequence[Mapping[str, str]]) -> list[str]:
    """Paths that are not the same in all of them."""
    paths = sorted({path for one in listings for path in one})
    return [path for path in paths if len({one.get(path) for one in listings}) > 1][:DIFFERING_MAX]
