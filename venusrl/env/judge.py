"""The judge that an environment may ask. Jobs cannot name judges yet, so every ask says so."""

from __future__ import annotations

from typing import Protocol


class JudgeUnavailable(Exception):
    """The job names no judge; a reward that asks one becomes unscorable."""


class JudgeClient(Protocol):
    """A language model that grades, reached through the platform."""

    async def ask(self, prompt: str) -> str:
        """The judge's answer to one prompt."""
        ...


class NoJudge:
    """The judge of a job without judges."""

    async def ask(self, prompt: str) -> str:
        """Refuse."""
        raise JudgeUnavailable("this job names no judge")
