"""Sandboxes of the machine's runtime for the cases of one validation."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.ports import ForkFailed, Runtime, Sandbox, SandboxSpec
from venusrl.env.host.ports import EnvironmentCrashed, InstanceKey, SandboxPort
from venusrl.env.messages import Rollout
from venusrl.env.sandbox import CallKey, SandboxRequest, SandboxResult
from workers.fleet.grading_sandboxes import Wave

CHECK: Final = "check"
"""Stands for attempt and group in the keys of sandboxes that belong to no job."""


@dataclass(frozen=True, slots=True)
class _AgentPort:
    sandbox: Sandbox

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call; a validation never asks for one again."""
        return await self.sandbox.call(request)


@dataclass(frozen=True, slots=True)
class CaseSandboxes:
    """Implements `Sandboxes` of the kit's checks. `folder` is the unpacked package."""

    runtime: Runtime
    folder: Path
    _numbers: "count[int]" = field(default_factory=count)

    @asynccontextmanager
    async def agent(self, key: InstanceKey) -> AsyncIterator[SandboxPort]:
        """A fresh sandbox, gone at the end."""
        member = self._member(SandboxPurpose.AGENT)
        spec = SandboxSpec(member, "agent", 0, SandboxLimits())
        try:
            (sandbox,) = await self.runtime.fork([spec])
        except ForkFailed as error:
            raise EnvironmentCrashed("sandbox_lost", str(error)) from error
        try:
            yield _AgentPort(sandbox)
        finally:
            await self.runtime.destroy(member)

    @asynccontextmanager
    async def grader(self, rollouts: Sequence[Rollout]) -> AsyncIterator[SandboxPort]:
        """Grading sandboxes as a node makes them."""
        members = {one.id: self._member(SandboxPurpose.GRADER) for one in rollouts}
        wave = Wave(self.runtime, self.folder, {one.id: one for one in rollouts}, members)
        try:
            yield wave
        finally:
            await wave.close()

    def _member(self, purpose: SandboxPurpose) -> MemberKey:
        number = next(self._numbers)
        return MemberKey(AttemptId(CHECK), GroupId(CHECK), number, 0, purpose)
