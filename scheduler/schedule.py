"""What the leader says of each job's schedule: what differs from what it said last, once a second.

The core knows why a rollout is on no engine, engine hosts say what a rollout does on them; both meet
here. A pass looks at a bounded number of rollouts and writes a bounded number of groups, jobs taking
turns, so that a full pool costs the decisions little; what was left out comes with the next pass.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from domain.ids import AttemptId, GroupId, JobId
from domain.schedule import RolloutStage, WaitReason
from scheduler import room_refusals
from scheduler.context import JobContext
from scheduler.core.coordinator import Coordinator
from scheduler.core.views import GroupView, MemberView, ScheduleView, view_schedule
from scheduler.hosts import Connected, Hosts
from scheduler.profile import profile_of
from scheduler.progress import Throughput
from stores.system import schedules
from stores.system.schedules import ScheduleChange
from stores.unit_of_work import Database, LeaderFence

GROUPS_SHOWN_MAX: Final = 200
"""Groups of one answer, in order; lanes count the rest. A person reads a screen of them."""

GROUPS_KEPT_MAX: Final = 500
"""Live groups of a job whose rollouts can be asked for, in order: a x B of a very large job."""

ROLLOUTS_SEEN_MAX: Final = 2_000
"""Rollouts after which a pass ends, some 30 ms of the decision loop; larger pools take several."""

GROUPS_WRITTEN_MAX: Final = 300
"""Groups written in one pass: the transaction holds the leader's fence and must stay short."""

Body = Mapping[str, object]


@dataclass(slots=True)
class _Said:
    """What the rows of a job hold."""

    attempt_id: AttemptId
    head: Body = field(default_factory=dict)
    profile: Body = field(default_factory=dict)
    groups: dict[GroupId, Body] = field(default_factory=dict)


class ScheduleWriter:
    """Writes the schedules of one term's jobs."""

    def __init__(
        self,
        core: Coordinator,
        database: Database,
        hosts: Hosts,
        term: int,
        contexts: Mapping[JobId, JobContext],
        *,
        throughput: Throughput,
    ) -> None:
        self._core = core
        self._database = database
        self._hosts = hosts
        self._fence = LeaderFence(term)
        self._contexts = contexts
        self._throughput = throughput
        self._said: dict[JobId, _Said] = {}
        self._turn: list[JobId] = []

    async def write(self) -> None:
        """One pass."""
        changes = self._changes()
        ended = [job_id for job_id in self._said if job_id not in self._contexts]
        if not changes and not ended:
            return
        async with self._database.begin(self._fence) as connection:
            for change in changes:
                await schedules.write(connection, change)
            for job_id in ended:
                await schedules.forget(connection, job_id)
        for change in changes:
            self._remember(change)
        for job_id in ended:
            del self._said[job_id]

    def _changes(self) -> list[ScheduleChange]:
        """Jobs that were not reached in the last pass come first in this one."""
        now = time.time()
        known = [job for job in self._turn if job in self._contexts]
        queue = list(dict.fromkeys([*known, *self._contexts]))
        changes: list[ScheduleChange] = []
        seen = written = reached = 0
        for job_id in queue:
            if seen >= ROLLOUTS_SEEN_MAX or written >= GROUPS_WRITTEN_MAX:
                break
            reached += 1
            view = view_schedule(self._core.state, job_id, now, GROUPS_KEPT_MAX)
            if view is None:
                continue
            seen += sum(len(group.members) for group in view.groups)
            change = self._change(self._contexts[job_id], view, GROUPS_WRITTEN_MAX - written)
            if change is not None:
                written += len(change.groups)
                changes.append(change)
        self._turn = queue[reached:] + queue[:reached]
        return changes

    def _change(self, context: JobContext, view: ScheduleView, room: int) -> ScheduleChange | None:
        said = self._said.get(context.job_id)
        is_whole = said is None or said.attempt_id != context.attempt_id
        before = _Said(context.attempt_id) if said is None or is_whole else said
        bodies = {group.group_id: self._group(group) for group in view.groups}
        changed = [name for name, body in bodies.items() if before.groups.get(name) != body]
        groups = {name: bodies[name] for name in changed[:room]}
        gone = tuple(name for name in before.groups if name not in bodies)
        rate = self._throughput.rate(context.attempt_id, time.monotonic())
        job = self._core.view(context.job_id)
        assert job is not None, context.job_id
        head = head_of(view)
        profile = profile_of(view, job, context.plan, rate, self._hosts)
        if (head, profile) == (before.head, before.profile) and not (groups or gone or is_whole):
            return None
        return ScheduleChange(
            context.job_id, context.attempt_id, head, profile, groups, gone, is_whole
        )

    def _remember(self, change: ScheduleChange) -> None:
        said = self._said.get(change.job_id)
        if said is None or change.is_whole:
            said = self._said[change.job_id] = _Said(change.attempt_id)
        said.head, said.profile = change.head, change.profile
        said.groups.update(change.groups)
        for name in change.gone:
            said.groups.pop(name, None)

    def _group(self, group: GroupView) -> Body:
        return {
            "lane": group.lane.value,
            "ordinal": group.ordinal,
            "opened_at": group.opened_at,
            "staleness": group.staleness,
            "last_valid_step": group.last_valid_step,
            "position": group.position,
            "node": group.node,
            "rollouts": [self._member(member) for member in group.members],
        }

    def _member(self, member: MemberView) -> Body:
        reason, numbers, since = member.wait_reason, dict(member.numbers), member.since
        peer = None if member.host is None else self._hosts.connected.get(member.host)
        if peer is not None and member.stage is RolloutStage.PLACED:
            heard = peer.phases.get(member.rollout_id)
            if heard is not None:
                reason, since = WaitReason(heard[0]), heard[1]
                numbers = _numbers_of(reason, peer)
        if reason is WaitReason.SANDBOX_STARTS:
            numbers |= room_refusals.numbers(self._hosts, member.node, member.rollout_id)
        return {
            "id": member.rollout_id,
            "stage": member.stage.value,
            "wait_reason": reason.value,
            "numbers": numbers,
            "since": since,
            "try": member.try_,
            "hop": member.hop,
            "turn": member.turn,
            "tokens": member.tokens,
            "host": member.host,
        }


def head_of(view: ScheduleView) -> Body:
    """Order and bounds of a job's groups."""
    return {
        "filling_step": view.filling_step,
        "need": view.need,
        "open_groups": view.open_groups,
        "open_max": view.open_max,
        "sandboxes_free": view.sandboxes_free,
        "next_group": {"reason": view.next_group.value, "numbers": dict(view.next_group_numbers)},
        "groups": [
            {"id": group.group_id, "eta_s": round(group.eta_s, 1)}
            for group in view.groups[:GROUPS_SHOWN_MAX]
        ],
        "lanes": {lane.value: count for lane, count in view.lanes},
    }


_FIGURES: Final[Mapping[WaitReason, tuple[str, ...]]] = {
    WaitReason.WAITS_FOR_SLOT: ("slots", "waiting"),
    WaitReason.WAITS_FOR_KV: ("kv_pages", "kv_pages_held", "waiting"),
    WaitReason.WAITS_FOR_STEP: ("slots", "active", "waiting"),
    WaitReason.WAITS_FOR_WEIGHTS: ("policy_version",),
}
"""Figures of the engine host that belong to a reason."""


def _numbers_of(reason: WaitReason, peer: Connected) -> dict[str, float]:
    names = _FIGURES.get(reason, ())
    return {name: peer.figures[name] for name in names if name in peer.figures}
