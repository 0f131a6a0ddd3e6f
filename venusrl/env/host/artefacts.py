"""Files that a rollout leaves for its grader: taken from the agent's sandbox at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from venusrl.env.sandbox import ReadRequest, SandboxError, SandboxRequest, SandboxResult
from venusrl.env.wire import clean_text

STATE_ARTEFACT: Final = ".venus/state.json"
"""The environment's last snapshot as JSON; graders restore it and never see the name."""

ARTEFACTS_MAX: Final = 64
"""Files taken from one sandbox."""

ARTEFACT_CHARS_MAX: Final = 1 << 18
"""Kept of each file: all of them travel in one frame and in the trajectory."""


async def take_artefacts(
    paths: Sequence[str], call: Callable[[SandboxRequest], Awaitable[SandboxResult]]
) -> dict[str, str]:
    """The listed files that exist as regular files. Raises SandboxError if the sandbox is lost."""
    found: dict[str, str] = {}
    for path in paths[:ARTEFACTS_MAX]:
        try:
            content = await call(ReadRequest(path))
        except SandboxError as error:
            if error.reason == "lost":
                raise
            continue
        assert isinstance(content, bytes)
        found[path] = clean_text(content[:ARTEFACT_CHARS_MAX])
    return found
