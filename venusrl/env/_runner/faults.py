"""How user code failed, as the runner reports it: a cause of the closed set and a line of text."""

from __future__ import annotations

import traceback
from typing import Final

from venusrl.env.sandbox import SandboxError

DETAIL_CHARS_MAX: Final = 2000
"""Enough for an exception's message; the whole traceback goes to the log stream."""


class RunnerFault(Exception):
    """A request that has no answer."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail[:DETAIL_CHARS_MAX]


def fault_of(error: BaseException, where: str) -> RunnerFault:
    """Turn what user code raised into a fault, and print its traceback to the log stream."""
    if isinstance(error, RunnerFault):
        return error
    if isinstance(error, TimeoutError):
        return RunnerFault("call_timeout", f"{where} did not end in time")
    if isinstance(error, SandboxError) and error.reason in ("lost", "refused"):
        return RunnerFault("sandbox_lost", f"{where}: {error}")
    print("".join(traceback.format_exception(error)), end="")
    return RunnerFault("raised", f"{where} raised {type(error).__name__}: {error}")
