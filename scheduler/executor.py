"""Executes the core's commands: rows in one fenced transaction per batch, then frames, then facts.

Commit, then send: a frame never tells of something that a takeover could undo. A frame that is lost
is sent again because the core decides anew from the host's next snapshot or from the sweeps.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, assert_never

from domain import commands as c
from domain import wire
from domain.events import EvaluationScored, Event, TryFailed
from domain.ids import AttemptId, GroupId, HostId, JobId, attempt_of, group_of, host_id
from domain.sandbox import ForkMember, SandboxLimits
from domain.seeds import rollout_seed
from domain.states import End, HostKind
from infra import failpoints
from scheduler.context import JobContext
from scheduler.hosts import Hosts
from stores import events as job_events
from stores.system import coordination, evaluations, leases
from stores.unit_of_work import AsyncConnection, Database, LeaderFence

BATCH_MAX: Final = 200
"""Commands in one transaction: bounds its length and what a failure repeats."""

FAILPOINT_BEFORE_COMMIT: Final = "leader.before_commit"
FAILPOINT_AFTER_COMMIT: Final = "leader.after_commit_before_send"

EVENT_OF_STATE: Final = "job.state"


@dataclass(slots=True)
class Effects:
    """What follows a commit: frames by host and epoch, and facts for the core."""

    frames: list[tuple[HostId, int, object]] = field(default_factory=list)
    facts: list[Event] = field(default_factory=list)


class Executor:
    """One term's hands. `contexts` is kept by the leader; `data_position` comes from the core."""

    def __init__(
        self,
        database: Database,
        hosts: Hosts,
        term: int,
        contexts: Mapping[JobId, JobContext],
        *,
        feed: Callable[[Event], None],
        data_position: Callable[[AttemptId], tuple[int, tuple[int, ...]]],
    ) -> None:
        self._database = database
        self._hosts = hosts
        self._fence = LeaderFence(term)
        self._contexts = contexts
        self._feed = feed
        self._data_position = data_position
        self._queue: deque[c.Command] = deque()

    def enqueue(self, commands: Sequence[c.Command]) -> None:
        """Take commands in order."""
        self._queue.extend(commands)

    @property
    def pending(self) -> int:
        """Commands that are not executed yet."""
        return len(self._queue)

    async def run_batch(self) -> None:
        """Execute what is queued, up to a bound. Raises StoreUnavailable or FencedOut unexecuted."""
        batch = [self._queue[i] for i in range(min(BATCH_MAX, len(self._queue)))]
        effects = Effects()
        async with self._database.begin(self._fence) as connection:
            for command in batch:
                await self._apply(connection, command, effects)
            failpoints.hit(FAILPOINT_BEFORE_COMMIT)
        failpoints.hit(FAILPOINT_AFTER_COMMIT)
        for _ in batch:
            self._queue.popleft()
        for host, epoch, frame in effects.frames:
            self._hosts.send(host, epoch, frame)
        for fact in effects.facts:
            self._feed(fact)

    def _context(self, attempt: AttemptId) -> JobContext | None:
        return next(
            (one for one in self._contexts.values() if one.attempt_id == attempt),
            None,
        )

    def _of_group(self, group: GroupId) -> JobContext | None:
        return self._context(attempt_of(group))

    async def _apply(
        self, connection: AsyncConnection, command: c.Command, effects: Effects
    ) -> None:
        match command:
            case c.SetJobState():
                await self._set_state(connection, command)
            case c.NoteJob():
                await job_events.append(
                    connection, command.job_id, command.type, self._said(command)
                )
            case c.GrantGang() | c.ReleaseGang() | c.ReplaceHost():
                await self._apply_hosts(connection, command, effects)
            case c.OpenGroup() | c.ForkSandboxes() | c.GradeGroup() | c.DropGroup():
                await self._apply_group(connection, command, effects)
            case c.ReleaseSandboxes(node=node, node_epoch=epoch):
                frames = (wire.Release(rollout, try_) for rollout, try_ in command.members)
                effects.frames.extend((node, epoch, frame) for frame in frames)
            case (
                c.PlaceRollout() | c.SuspendRollout() | c.SetRanks() | c.EndTry() | c.CloseRollout()
            ):
                await self._apply_rollout(connection, command, effects)
            case (
                c.AssignGroup()
                | c.ReplaceMember()
                | c.CloseStep()
                | c.SyncEngine()
                | c.WriteCheckpoint()
                | c.FinishEvaluation()
            ):
                await self._apply_step(connection, command, effects)
            case _ as unreachable:
                assert_never(unreachable)

    def _said(self, note: c.NoteJob) -> dict[str, str]:
        """A note's body; where it names groups, with the ids of their tasks beside them."""
        body, context = dict(note.body), self._contexts.get(note.job_id)
        if "groups" in body and context is not None:
            groups = (GroupId(name) for name in body["groups"].split())
            found = dict.fromkeys(context.task(group).task_id for group in groups)
            body["tasks"] = " ".join(found)
        return body

    async def _set_state(self, connection: AsyncConnection, command: c.SetJobState) -> None:
        former = await coordination.set_job_state(connection, command)
        context = self._contexts.get(command.job_id)
        if context is not None and command.state in ("succeeded", "failed", "cancelled"):
            await coordination.end_attempt(connection, context.attempt_id)
        if former is None or former == command.state.value:
            return
        body = {"state": command.state.value, "reason": command.reason or ""}
        if command.failure_code is not None:
            body |= {
                "failure_code": command.failure_code,
                "component": command.failure_component or "",
                "hint": command.failure_hint or "",
            }
        await job_events.append(connection, command.job_id, EVENT_OF_STATE, body)

    async def _apply_hosts(
        self,
        connection: AsyncConnection,
        command: c.GrantGang | c.ReleaseGang | c.ReplaceHost,
        effects: Effects,
    ) -> None:
        match command:
            case c.GrantGang(attempt_id=attempt, job_id=job):
                roles = [("trainer", HostKind.TRAINER)]
                roles += [(f"engine{i}", HostKind.ENGINE) for i in range(command.engines)]
                for role, kind in roles:
                    await leases.declare(connection, host_id(attempt, role), kind, attempt, job)
            case c.ReleaseGang(attempt_id=attempt):
                await leases.retire(connection, attempt)
                for peer in self._hosts.connected.values():
                    if peer.kind is HostKind.NODE:
                        frame = wire.ReleaseAttempt(attempt)
                        effects.frames.append((peer.host_id, peer.epoch, frame))
            case c.ReplaceHost():
                await leases.evict(connection, command.host_id, command.epoch, command.cause)

    async def _apply_group(
        self,
        connection: AsyncConnection,
        command: c.OpenGroup | c.ForkSandboxes | c.GradeGroup | c.DropGroup,
        effects: Effects,
    ) -> None:
        context = self._of_group(command.group_id)
        match command:
            case c.OpenGroup():
                if context is None:
                    return
                origin = coordination.GroupOrigin(
                    job_id=context.job_id,
                    organization_id=context.row.organization_id,
                    task_id=context.task(command.group_id).task_id,
                    environment_version_id=context.package(command.group_id).environment_version_id,
                    environment=context.environment(command.group_id),
                )
                await coordination.open_group(connection, command, origin)
            case c.ForkSandboxes():
                if context is not None:
                    frame = self._fork(context, command)
                    effects.frames.append((command.node, command.node_epoch, frame))
            case c.GradeGroup():
                await coordination.raise_grade_epoch(connection, command)
                grade = wire.Grade(command.group_id, command.grade_epoch, command.purpose)
                effects.frames.append((command.node, command.node_epoch, grade))
            case c.DropGroup():
                await coordination.drop_group(connection, command)

    def _fork(self, context: JobContext, command: c.ForkSandboxes) -> wire.Fork:
        package = context.package(command.group_id)
        return wire.Fork(
            attempt_id=context.attempt_id,
            group_id=command.group_id,
            members=tuple(
                ForkMember(rollout, try_, 0, rollout_seed(context.spec.seed, rollout, try_))
                for rollout, try_ in command.members
            ),
            environment_version_id=package.environment_version_id,
            package_uri=package.uri,
            package_sha=package.sha,
            config_json=context.config_json(command.group_id),
            task_json=context.task(command.group_id).json,
            limits=SandboxLimits(),
        )

    async def _apply_rollout(
        self,
        connection: AsyncConnection,
        command: c.PlaceRollout | c.SuspendRollout | c.SetRanks | c.EndTry | c.CloseRollout,
        effects: Effects,
    ) -> None:
        match command:
            case c.PlaceRollout():
                if await coordination.raise_hop(connection, command):
                    self._place(command, effects)
            case c.SuspendRollout():
                gone = wire.Suspend(command.rollout_id, command.hop, command.keep_kv)
                effects.frames.append((command.host_id, command.epoch, gone))
            case c.SetRanks():
                frame = wire.Ranks(command.ranks)
                effects.frames.append((command.host_id, command.epoch, frame))
            case c.EndTry():
                await coordination.end_try(connection, command)
                self._forget(command, effects)
            case c.CloseRollout():
                fact = await coordination.close_rollout(connection, command)
                self._forget(command, effects)
                if fact is not None:
                    effects.facts.append(fact)

    def _place(self, command: c.PlaceRollout, effects: Effects) -> None:
        group = group_of(command.rollout_id)
        context = self._of_group(group)
        node = self._hosts.connected.get(command.node)
        if context is None:
            return
        if node is None:
            # The placement would never reach a sandbox; the next try asks for one anew.
            lost = TryFailed(
                command.rollout_id,
                command.try_,
                command.hop,
                End.SANDBOX_LOST,
                "the node agent is not connected",
            )
            effects.facts.append(lost)
            return
        is_evaluation = context.is_evaluation(group)
        frame = wire.Place(
            rollout_id=command.rollout_id,
            group_id=group,
            try_=command.try_,
            hop=command.hop,
            rank=command.rank,
            seed=rollout_seed(context.spec.seed, command.rollout_id, command.try_),
            evaluation=is_evaluation,
            pinned_version=context.evaluated_step(group) if is_evaluation else -1,
            node_address=node.snapshot.data_address,
            node_key=node.snapshot.data_key,
            task_json=context.task(group).json,
            environment=context.environment(group),
            # A placement raises the hop by one: what it follows had the number before.
            kv=self._hosts.kv_source(command.kv_from, command.rollout_id, command.hop - 1),
        )
        effects.frames.append((command.host_id, command.epoch, frame))

    def _forget(self, command: c.EndTry | c.CloseRollout, effects: Effects) -> None:
        forget = wire.Forget(command.rollout_id, command.hop)
        release = wire.Release(command.rollout_id, command.try_)
        attempt = attempt_of(group_of(command.rollout_id))
        for peer in self._hosts.connected.values():
            if peer.kind is HostKind.NODE:
                effects.frames.append((peer.host_id, peer.epoch, release))
            elif peer.kind is HostKind.ENGINE and peer.snapshot.attempt_id == attempt:
                effects.frames.append((peer.host_id, peer.epoch, forget))

    async def _apply_step(
        self,
        connection: AsyncConnection,
        command: c.AssignGroup
        | c.ReplaceMember
        | c.CloseStep
        | c.SyncEngine
        | c.WriteCheckpoint
        | c.FinishEvaluation,
        effects: Effects,
    ) -> None:
        if isinstance(command, c.SyncEngine):
            frame = wire.Sync(command.policy)
            effects.frames.append((command.host_id, command.epoch, frame))
            return
        context = self._context(command.attempt_id)
        if context is None:
            return
        match command:
            case c.AssignGroup():
                await coordination.assign_group(connection, context.job_id, command)
                self._to_trainer(command.attempt_id, wire.Wake(command.step), effects)
            case c.ReplaceMember():
                await coordination.replace_member(connection, command)
                self._to_trainer(command.attempt_id, wire.Wake(command.step), effects)
            case c.CloseStep():
                self._to_trainer(command.attempt_id, wire.Finish(command.step), effects)
            case c.WriteCheckpoint():
                next_ordinal, unconsumed = self._data_position(command.attempt_id)
                checkpoint = wire.Checkpoint(command.step, command.reason, next_ordinal, unconsumed)
                self._to_trainer(command.attempt_id, checkpoint, effects)
            case c.FinishEvaluation():
                effects.facts.append(await self._finish_evaluation(connection, context, command))

    async def _finish_evaluation(
        self, connection: AsyncConnection, context: JobContext, command: c.FinishEvaluation
    ) -> EvaluationScored:
        rules = context.spec.evaluation_rules
        score = await evaluations.finish_evaluation(connection, command, rules)
        body = {
            "step": command.step,
            "tasks": score.tasks,
            "scored": score.scored,
            "unscorable": score.unscorable,
            "score": score.score,
            "seconds": round(score.seconds, 3),
            "estimates": [asdict(one) for one in score.estimates],
            "selected": score.selected,
            "environments": [
                {"name": one["name"], "score": one["score"]} for one in score.environments
            ],
        }
        await job_events.append(connection, context.job_id, "evaluation.finished", body)
        return EvaluationScored(command.attempt_id, command.step, score.selected)

    def _to_trainer(self, attempt: AttemptId, frame: object, effects: Effects) -> None:
        trainer = self._hosts.connected.get(host_id(attempt, "trainer"))
        if trainer is not None:
            effects.frames.append((trainer.host_id, trainer.epoch, frame))
