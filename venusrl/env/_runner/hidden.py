"""The secrets that this process was given: in `os.environ` for user code, and struck out of what it says.

Only the `start` request brings them, over the private pipe: never the command line, never a file.
Grading children are forks, so that they know them too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from venusrl.env.redaction import Redactor

_redactor = Redactor()


def take(secrets: Mapping[str, str]) -> None:
    """Give user code its variables; from now on their values are struck."""
    global _redactor
    os.environ.update(secrets)
    _redactor = Redactor(secrets.values())


def strike(text: str) -> str:
    """Text without the values; call it before anything is cut off."""
    return _redactor.text(text)


def longest() -> int:
    """Characters that the longest spelling of a value may have."""
    return _redactor.longest
