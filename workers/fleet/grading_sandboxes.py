"""Fresh sandboxes for rewards that ask for one, from the node's grading reserve.

Each rollout gets its own at its first call: the package's `grader/` folder read-only at /grader, the
listed artefacts of the agent's sandbox in the work folder, and nothing else of that sandbox.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.ids import RolloutId, attempt_of, group_of, index_of
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.node.account import RoomAsk, template_of
from sandboxes.node.slots import Slots
from sandboxes.ports import ForkFailed, Mount, Runtime, Sandbox, SandboxSpec
from venusrl.env.messages import Rollout
from venusrl.env.sandbox import (
    CallKey,
    SandboxError,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)
from workers.fleet.packages import Package
from workers.fleet.rooms import Rooms, Unwatched, grader_room

GRADER_FOLDER: Final = "grader"
GRADER_TARGET: Final = "/grader"

ROOM_WAIT_S: Final = 300.0
"""A grading that finds no room within it fails with a cause and is asked again."""


class NoGradingRoom(Exception):
    """The node has no room for grading sandboxes now; the message names the limit."""


@dataclass(slots=True)
class Wave:
    """The port of one wave of rollouts; a rollout's sandbox starts with its first call.

    `folder` is the unpacked package, `members` names the sandbox of each rollout.
    """

    runtime: Runtime
    folder: Path
    rollouts: Mapping[str, Rollout]
    members: Mapping[str, MemberKey]
    started: dict[str, "asyncio.Task[Sandbox]"] = field(default_factory=dict)

    async def close(self) -> None:
        """Destroy all of them, those that are still starting too."""
        await asyncio.gather(*(self.runtime.destroy(one) for one in self.members.values()))
        await asyncio.gather(*self.started.values(), return_exceptions=True)

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call of a reward; a sandbox that could not be made is lost."""
        task = self.started.get(key.rollout)
        if task is None:
            task = self.started[key.rollout] = asyncio.create_task(self._start(key.rollout))
        try:
            sandbox = await asyncio.shield(task)
        except ForkFailed as error:
            raise SandboxError("lost", str(error)) from error
        return await sandbox.call(request)

    async def _start(self, rollout: str) -> Sandbox:
        folder = self.folder / GRADER_FOLDER
        mounts = (Mount(folder, GRADER_TARGET),) if folder.is_dir() else ()
        spec = SandboxSpec(
            key=self.members[rollout],
            hostname="grader",
            seed=0,
            limits=SandboxLimits(),
            mounts=mounts,
        )
        (sandbox,) = await self.runtime.fork([spec])
        for path, text in self.rollouts[rollout].artefacts.items():
            await sandbox.call(WriteRequest(path, text.encode()))
        return sandbox


@dataclass(frozen=True, slots=True)
class GradingSandboxes:
    """Opens waves of grading sandboxes within the node's slots."""

    runtime: Runtime
    slots: Slots
    rooms: Rooms = field(default_factory=Unwatched)

    @property
    def at_once(self) -> int:
        """Sandboxes of a wave that never has to wait for agents."""
        return self.slots.reserve

    @asynccontextmanager
    async def wave(
        self, package: Package, rollouts: Sequence[Rollout], epoch: int
    ) -> AsyncIterator[Wave]:
        """Room for one sandbox a rollout; all of them are gone at the end. Raises NoGradingRoom."""
        count = len(rollouts)
        if count > self.slots.most(SandboxPurpose.GRADER):
            raise NoGradingRoom(f"{count} grading sandboxes: {self.slots.describe()}")
        members = {one.id: _member(one.id, epoch) for one in rollouts}
        ask = _ask(package, tuple(members.values()))
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                await self.slots.take(SandboxPurpose.GRADER, count, ask)
        except TimeoutError:
            raise NoGradingRoom(self.slots.describe(ask)) from None
        by_id = {one.id: one for one in rollouts}
        wave = Wave(self.runtime, package.folder, by_id, members)
        held = [grader_room(one.id, epoch) for one in rollouts]
        for room in held:
            self.rooms.taken(room)
        try:
            yield wave
        finally:
            await wave.close()
            if self.slots.account is not None:
                for rollout, key in members.items():
                    self.slots.account.end(key, has_finished=rollout in wave.started)
            self.slots.give(SandboxPurpose.GRADER, count)
            for room in held:
                self.rooms.given(room)


def _ask(package: Package, members: tuple[MemberKey, ...]) -> RoomAsk:
    """Memory of a wave; graders of one package are alike, whatever their agents need."""
    ceiling = SandboxLimits().memory_bytes
    spec = template_of(package.folder.name, SandboxPurpose.GRADER, ceiling)
    return RoomAsk(SandboxPurpose.GRADER, spec, members)


def _member(rollout: str, epoch: int) -> MemberKey:
    """The key of a rollout's grading sandbox; another grade epoch is another sandbox."""
    rollout_id = RolloutId(rollout)
    group = group_of(rollout_id)
    return MemberKey(
        attempt_id=attempt_of(group),
        group_id=group,
        index=index_of(rollout_id),
        try_=0,
        purpose=SandboxPurpose.GRADER,
        ordinal=epoch,
    )
