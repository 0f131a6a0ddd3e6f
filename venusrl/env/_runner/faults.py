"""How user code failed, as the runner reports it: a cause of the closed set and a line of text."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Final

from venusrl.env._runner.hidden import strike
from venusrl.env.sandbox import SandboxError

DETAIL_CHARS_MAX: Final = 2000
"""Enough for an exception's message; the whole traceback goes to the log stream."""


class RunnerFault(Exception):
    """A request that has no answer."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = strike(detail)[:DETAIL_CHARS_MAX]


def fault_of(error: BaseException, where: str) -> RunnerFault:
    """Turn what user code raised into a fault, and print its traceback to the log stream."""
    if isinstance(error, RunnerFault):
        return error
    if isinstance(error, TimeoutError):
        return RunnerFault("call_timeout", f"{where} did not end in time")
    if isinstance(error, SandboxError) and error.reason in ("lost", "refused"):
        return RunnerFault("sandbox_lost", f"{where}: {error}")
    print("".join(traceback.format_exception(error)), end="")
    return RunnerFault("raised", f"{where} raised {type(error).__name__}: {error}{_place(error)}")


def _place(error: BaseException) -> str:
    """` at env.py:12`: the innermost line that belongs to the package; empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        folder = next((one for one in sys.path[::-1] if frame.filename.startswith(f"{one}/")), "")
        name = frame.filename.removeprefix(f"{folder}/")
        if folder == _package_folder() and not name.startswith("venusrl/"):
            return f" at {name}:{frame.lineno}"
    return ""


def _package_folder() -> str:
    """The package stands after the kit on the path, before installed libraries."""
    kit = next((n for n, one in enumerate(sys.path) if Path(one, "venusrl/env").is_dir()), -1)
    return sys.path[kit + 1] if 0 <= kit < len(sys.path) - 1 else ""
