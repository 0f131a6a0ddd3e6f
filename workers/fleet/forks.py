"""Forks: sandbox, environment instance and setup for the tries of one group.

A fork is idempotent per try: one that is ready is announced again, one that failed is reported
again, one in progress is left alone. A fork waits for room for a while, because rooms are given
back by the same commands that asked for it; only then it is refused with the limit's name.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domain.errors import PayloadUnreadable
from domain.events import SandboxReady
from domain.sandbox import ForkMember, SandboxLimits, SandboxPurpose
from domain.states import End
from domain.wire import Fork, ForkRefused
from infra import failpoints
from infra.pool_frames import RoomRefused
from sandboxes.node.account import RoomAsk, template_of
from sandboxes.node.calls import CallLog
from sandboxes.node.journal import Journal
from sandboxes.node.registry import TryKey, TryState
from sandboxes.node.slots import NeverFits
from sandboxes.ports import ForkFailed, Sandbox, SandboxSpec
from venusrl.env.host.ports import EnvironmentFault, SandboxLost
from venusrl.env.wire import BadRecord, task_from_json
from workers.fleet import seams
from workers.fleet.environment_pool import EnvironmentKey, EnvironmentPool
from workers.fleet.holdings import FleetTry, Holdings, Origin
from workers.fleet.packages import Package, PackageRef, Packages

ROOM_WAIT_S: Final = 20.0
"""Releases that made room for this fork are executed within it, unless the node is really full."""


@dataclass(frozen=True, slots=True)
class Forker:
    """Serves `Fork` frames."""

    holdings: Holdings
    packages: Packages
    environments: EnvironmentPool

    def fork(self, frame: Fork) -> None:
        """Begin what is new, answer again for what is known. Never waits."""
        try:
            origin = _origin(frame)
        except (BadRecord, ValueError) as error:
            self._refuse(frame, frame.members, f"unreadable fork: {error}")
            return
        fresh = []
        for member in frame.members:
            held = self.holdings.registry.get(TryKey(member.rollout_id, member.try_))
            if held is None:
                fresh.append(self._hold(member, origin))
            else:
                self._answer_again(held)
        if fresh:
            self.holdings.spawn(self._fork(frame, fresh))

    def _hold(self, member: ForkMember, origin: Origin) -> FleetTry:
        holdings = self.holdings
        held = FleetTry(
            key=TryKey(member.rollout_id, member.try_),
            hop=member.hop,
            seed=member.seed,
            journal=Journal(origin.task.prompt),
            origin=origin,
        )
        holdings.spawn(holdings.release(member.rollout_id, member.try_ - 1))
        holdings.registry.add(held)
        return held

    def _answer_again(self, held: FleetTry) -> None:
        if held.state is TryState.FAILED:
            self.holdings.tell_failure(held)
        elif held.state is not TryState.FORKING:
            self._announce(held)

    def _announce(self, held: FleetTry) -> None:
        holdings, key = self.holdings, held.key
        holdings.notify(SandboxReady(key.rollout_id, key.try_, holdings.host_id, holdings.epoch))

    def _refuse(self, frame: Fork, members: tuple[ForkMember, ...], cause: str) -> None:
        pairs = tuple((member.rollout_id, member.try_) for member in members)
        self.holdings.notify(ForkRefused(frame.group_id, pairs, cause, transient=False))

    async def _fork(self, frame: Fork, fresh: list[FleetTry]) -> None:
        try:
            package = await self.packages.fetch(fresh[0].origin.package_ref)
        except PayloadUnreadable as error:
            self._fail_all(fresh, f"package_unreadable: {error}")
            return
        for held in fresh:
            held.package = package
        parts = self._parts(frame, fresh, package)
        await asyncio.gather(*(self._fork_part(frame, part, package) for part in parts))

    async def _fork_part(self, frame: Fork, part: list[FleetTry], package: Package) -> None:
        part = [held for held in part if not held.is_released]
        if not part or not await self._take_room(part, self._ask(frame, part, package)):
            return
        origin = part[0].origin
        try:
            process = await self.environments.get(origin.environment, package, origin.config)
        except EnvironmentFault as fault:
            self._fail_all(part, str(fault))
        else:
            for held in part:
                held.process = process
            await asyncio.gather(*(self._open(held, frame.limits) for held in part))
        await asyncio.gather(*(self.holdings.dispose(h) for h in part if h.is_released))

    def _ask(self, frame: Fork, part: Sequence[FleetTry], package: Package) -> RoomAsk | None:
        """Whose memory these tries need; None for bare journals, which need a place only."""
        if not package.manifest.sandbox:
            return None
        spec = template_of(
            frame.environment_version_id,
            SandboxPurpose.AGENT,
            frame.limits.memory_bytes,
        )
        return RoomAsk(SandboxPurpose.AGENT, spec, tuple(held.member for held in part))

    def _parts(self, frame: Fork, fresh: list[FleetTry], package: Package) -> list[list[FleetTry]]:
        """The group as a whole; in halves where an empty node would not take more of it at once."""
        size = len(fresh)
        while size > 1:
            ask = self._ask(frame, fresh[:size], package)
            if ask is None or self.holdings.slots.never(ask) is None:
                break
            size = (size + 1) // 2
        return [fresh[start : start + size] for start in range(0, len(fresh), size)]

    async def _take_room(self, part: list[FleetTry], ask: RoomAsk | None) -> bool:
        holdings = self.holdings
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                await holdings.slots.take(SandboxPurpose.AGENT, len(part), ask)
        except NeverFits as never:
            for held in part:
                holdings.fail(held, End.SANDBOX_LOST, f"fork_failed: {never}")
            return False
        except TimeoutError:
            for held in part:
                holdings.registry.remove(held)
            holdings.notify(_refusal(part, ask, holdings))
            return False
        for held in part:
            holdings.took_room(held)
        return True

    async def _open(self, held: FleetTry, limits: SandboxLimits) -> None:
        """Sandbox, instance, setup; then the try is ready, or has failed."""
        process, package = held.process, held.package
        if held.is_released or process is None or package is None:
            return
        try:
            if package.manifest.sandbox:
                held.calls = CallLog((await self._sandbox(held, limits)).call)
            failpoints.hit(seams.SANDBOX_CREATED)
            held.tools = tuple(dict(tool) for tool in process.info.tools)
            await process.open(held.instance, held.origin.task, held.seed, held.calls)
            held.journal.state = await process.setup(held.instance)
        except ForkFailed as error:
            self.holdings.fail(held, End.SANDBOX_LOST, f"fork_failed: {error}")
        except SandboxLost as fault:
            self.holdings.fail(held, End.SANDBOX_LOST, str(fault))
        except EnvironmentFault as fault:
            self.holdings.fail(held, End.ENV_FAILED, str(fault))
        else:
            self.environments.succeeded(held.origin.environment)
            if held.state is TryState.FORKING and not held.is_released:
                held.state = TryState.READY
                self._announce(held)

    async def _sandbox(self, held: FleetTry, limits: SandboxLimits) -> Sandbox:
        spec = SandboxSpec(held.member, hostname_of(held.key), held.seed, limits)
        (sandbox,) = await self.holdings.runtime.fork([spec])
        return sandbox

    def _fail_all(self, fresh: list[FleetTry], cause: str) -> None:
        for held in fresh:
            self.holdings.fail(held, End.ENV_FAILED, cause)


def _refusal(part: list[FleetTry], ask: RoomAsk | None, holdings: Holdings) -> RoomRefused:
    """The node has no room now: which rule says so, in numbers where memory does."""
    slots = holdings.slots
    refused = None if ask is None else slots.refusal(ask)
    most, taken = slots.most(SandboxPurpose.AGENT), slots.taken(SandboxPurpose.AGENT)
    return RoomRefused(
        group_id=part[0].group_id,
        members=tuple((held.key.rollout_id, held.key.try_) for held in part),
        rule="sandboxes" if refused is None else f"{refused.resource}.{refused.why}",
        needed=float(taken + len(part)) if refused is None else refused.needed,
        available=float(most) if refused is None else refused.available,
        cause=slots.describe(ask),
    )


def _origin(frame: Fork) -> Origin:
    config = json.loads(frame.config_json)
    if not isinstance(config, dict):
        raise BadRecord("config must be an object")
    return Origin(
        environment=EnvironmentKey(
            frame.attempt_id, frame.environment_version_id, frame.config_json
        ),
        package_ref=PackageRef(frame.package_uri, frame.package_sha),
        config=config,
        task=task_from_json(json.loads(frame.task_json)),
    )


def hostname_of(key: TryKey) -> str:
    """Of a try's sandbox: at most 63 characters of what tells siblings apart, ordinal, index and try."""
    return f"{key.rollout_id[-13:].replace('_', '-')}-t{key.try_}"
