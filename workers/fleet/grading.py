"""The grader: a closed group's trajectories, its rewards, one transaction (`protocol.md` section 4).

    read rows -> read trajectories -> run rewards in the environment process -> decide -> payload
    -> commit, fenced by host epoch and grade epoch -> tell the leader

A grading that meets a failure of the outside says so with its cause and writes nothing. One that
was graded before is answered from its row. One that was overtaken (a higher grade epoch, a dropped
group) ends without a word.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, cast

import msgspec

from domain.errors import FencedOut, ObjectNotWritten, PayloadUnreadable, StoreUnavailable
from domain.events import GradeFailed, GroupGraded
from domain.ids import AttemptId, GroupId, attempt_of
from domain.states import Purpose
from domain.trajectory import Trajectory
from domain.wire import Grade
from infra import failpoints
from infra.clock import Clock
from infra.codec import from_msgpack, to_msgpack
from infra.logging import get_logger
from infra.names import payload_path
from infra.room import Room
from stores.blobs import Blobs
from stores.system.grading import ClosedMember, GroupToGrade, commit_verdicts, read_group
from stores.unit_of_work import Database, HostFence
from venusrl.env.host.artefacts import STATE_ARTEFACT
from venusrl.env.host.ports import EnvironmentFault, EnvironmentProcess, RolloutGrade
from venusrl.env.messages import Json, Rollout, Task
from venusrl.env.wire import BadRecord, messages_from_json, task_from_json
from workers.fleet import seams
from workers.fleet.environment_pool import EnvironmentKey, EnvironmentPool
from workers.fleet.grading_sandboxes import GradingSandboxes, NoGradingRoom
from workers.fleet.job_spec import GradingSpec, read_spec
from workers.fleet.output import Outputs, Unkept
from workers.fleet.packages import Package, PackageRef, Packages
from workers.fleet.verdicts import Decision, Subject, decide, is_gradable

GRADINGS_MAX: Final = 4
"""Groups graded at once; each forks the environment's runner, more would only wait for cores."""

READ_TRIES: Final = 3
"""Reads of one trajectory before its rollout is unscorable: object stores fail in passing."""

STORE_TRIES: Final = 30
"""Tries while Postgres is away, a second apart, before the leader is told to ask again."""

PAUSE_S: Final = 1.0
"""Between two tries of a store that is away."""

SPLITS_MAX: Final = 16
"""Task lists kept in memory."""

T = TypeVar("T")

OUTSIDE = (
    EnvironmentFault,
    PayloadUnreadable,
    ObjectNotWritten,
    StoreUnavailable,
    NoGradingRoom,
    FileExistsError,
    BadRecord,
    msgspec.ValidationError,
    msgspec.DecodeError,
)
"""What may keep a group from being graded; each is reported, the leader asks again a few times."""


class TaskUnknown(BadRecord):
    """The group's task is not in its split's list."""


@dataclass(slots=True)
class Grader:
    """Serves `Grade` frames. `notify` sends one frame to the leader and never waits."""

    database: Database
    fence: HostFence
    blobs: Blobs
    packages: Packages
    environments: EnvironmentPool
    sandboxes: GradingSandboxes
    notify: Callable[[object], None]
    clock: Clock
    output: Outputs = field(default_factory=Unkept)
    _running: dict[GroupId, tuple[int, "asyncio.Task[None]"]] = field(default_factory=dict)
    _room: Room = field(default_factory=lambda: Room(GRADINGS_MAX))
    _splits: dict[str, dict[str, str]] = field(default_factory=dict)

    def grade(self, frame: Grade) -> None:
        """Begin, unless this very grading runs already; an older one of the group is given up."""
        epoch, running = self._running.get(frame.group_id, (-1, None))
        if running is not None and not running.done():
            if epoch >= frame.grade_epoch:
                return
            running.cancel()
        task = asyncio.create_task(self._run(frame))
        self._running[frame.group_id] = (frame.grade_epoch, task)
        task.add_done_callback(lambda done: self._forget(frame, done))

    async def release_attempt(self, attempt_id: AttemptId) -> None:
        """Give up the gradings of an attempt."""
        await self._cancel([g for g in self._running if attempt_of(g) == attempt_id])

    async def close(self) -> None:
        """Give up all gradings."""
        await self._cancel(list(self._running))

    async def _cancel(self, groups: Sequence[GroupId]) -> None:
        tasks = [self._running[group][1] for group in groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, frame: Grade, done: "asyncio.Task[None]") -> None:
        if self._running.get(frame.group_id, (0, None))[1] is done:
            del self._running[frame.group_id]
        if not done.cancelled() and (error := done.exception()) is not None:
            get_logger().error("grade.crashed", group_id=frame.group_id, exc_info=error)
            cause = f"internal: {type(error).__name__}"
            self.notify(GradeFailed(frame.group_id, frame.grade_epoch, cause))

    async def _run(self, frame: Grade) -> None:
        try:
            async with self._room.place(int(frame.purpose is Purpose.EVALUATION)):
                graded = await self._graded(frame)
        except FencedOut as late:
            get_logger().info("grade.overtaken", group_id=frame.group_id, cause=str(late))
        except OUTSIDE as error:
            cause = f"{type(error).__name__}: {error}"[:1000]
            get_logger().warning("grade.failed", group_id=frame.group_id, cause=cause)
            self.notify(GradeFailed(frame.group_id, frame.grade_epoch, cause))
        else:
            self.notify(graded)

    async def _graded(self, frame: Grade) -> GroupGraded:
        group = await self._patiently(lambda: self._read(frame.group_id))
        if group is not None and group.graded is not None:
            return replace(group.graded, grade_epoch=frame.grade_epoch)
        if group is None or not group.is_pending or group.grade_epoch != frame.grade_epoch:
            raise FencedOut(f"{frame.group_id} is not to be graded under {frame.grade_epoch}")
        spec = read_spec(group.spec)
        subjects = await self._subjects(group, spec)
        decision = await self._stored(group, decide(group, spec, subjects))
        failpoints.hit(seams.BEFORE_GRADE_COMMIT)
        graded = await self._patiently(lambda: self._commit(decision))
        failpoints.hit(seams.AFTER_GRADE_COMMIT)
        return graded

    async def _read(self, group_id: GroupId) -> GroupToGrade | None:
        async with self.database.begin() as connection:
            return await read_group(connection, group_id)

    async def _commit(self, decision: Decision) -> GroupGraded:
        """Commit, or find that an earlier commit, whose answer was lost, has taken effect."""
        verdict = decision.verdict
        try:
            async with self.database.begin(self.fence) as connection:
                await commit_verdicts(connection, verdict)
        except FencedOut:
            group = await self._read(verdict.group_id)
            is_ours = group is not None and group.grade_epoch == verdict.grade_epoch
            if group is None or group.graded is None or not is_ours:
                raise
            return group.graded
        return verdict.event()

    async def _patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        for remaining in reversed(range(STORE_TRIES)):
            try:
                return await action()
            except StoreUnavailable:
                if not remaining:
                    raise
                await self.clock.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _stored(self, group: GroupToGrade, decision: Decision) -> Decision:
        """Store the payload, if there is one, and name it in the verdict."""
        if decision.payload is None:
            return decision
        path = payload_path(group.job_id, group.group_id, group.grade_epoch)
        blob = await self.blobs.create(path, to_msgpack(decision.payload))
        named = replace(decision.verdict, payload_uri=blob.uri, payload_sha=blob.sha)
        return replace(decision, verdict=named)

    async def _subjects(self, group: GroupToGrade, spec: GradingSpec) -> list[Subject]:
        trajectories = await asyncio.gather(*(self._trajectory(m) for m in group.members))
        pairs = list(zip(group.members, trajectories, strict=True))
        task = await self._task(group, spec)
        rollouts = [
            _rollout(member, task, trajectory)
            for member, trajectory in pairs
            if trajectory is not None
        ]
        grades = await self._grades(group, spec, rollouts) if rollouts else {}
        return [Subject(member, t, grades.get(member.rollout_id)) for member, t in pairs]

    async def _trajectory(self, member: ClosedMember) -> Trajectory | None:
        """The member's trajectory; None when it has none or it stays unreadable."""
        if not is_gradable(member) or member.trajectory_uri is None:
            return None
        for remaining in reversed(range(READ_TRIES)):
            try:
                data = await self.blobs.read(member.trajectory_uri, member.trajectory_sha)
                return from_msgpack(data, Trajectory)
            except (PayloadUnreadable, msgspec.ValidationError, msgspec.DecodeError) as error:
                get_logger().warning(
                    "trajectory.unreadable", rollout_id=member.rollout_id, cause=str(error)
                )
                if remaining:
                    await self.clock.sleep(PAUSE_S)
        return None

    async def _task(self, group: GroupToGrade, spec: GradingSpec) -> Task:
        name = spec.task_list(group.purpose, group.environment)
        stored = group.tasks.get(name)
        if stored is None:
            raise TaskUnknown(f"the job has no task list {name}")
        uri = str(stored["uri"])
        lines = self._splits.get(uri)
        if lines is None:
            data = await self.blobs.read(uri, str(stored["sha"]))
            lines = {
                str(json.loads(line)["id"]): line for line in data.decode().splitlines() if line
            }
            while len(self._splits) >= SPLITS_MAX:
                self._splits.pop(next(iter(self._splits)))
            self._splits[uri] = lines
        if group.task_id not in lines:
            raise TaskUnknown(f"task {group.task_id} is not in its split")
        return task_from_json(json.loads(lines[group.task_id]))

    async def _grades(
        self, group: GroupToGrade, spec: GradingSpec, rollouts: Sequence[Rollout]
    ) -> dict[str, RolloutGrade]:
        package = await self.packages.fetch(PackageRef(group.package_uri, group.package_sha))
        config = spec.config(group.purpose, group.environment)
        config_json = json.dumps(config, sort_keys=True)
        key = EnvironmentKey(group.attempt_id, group.environment_version_id, config_json)
        process = await self.environments.get(key, package, config)
        seed = grading_seed(spec.seed, group.ordinal, group.purpose)
        try:
            if not package.manifest.grading_sandbox:
                grades = list(await process.grade(rollouts, seed, None))
            else:
                grades = await self._grades_in_waves(group, package, process, rollouts)
        finally:
            self.output.graded(group.attempt_id, [one.id for one in rollouts])
        self.environments.succeeded(key)
        return {grade.rollout: grade for grade in grades}

    async def _grades_in_waves(
        self,
        group: GroupToGrade,
        package: Package,
        process: EnvironmentProcess,
        rollouts: Sequence[Rollout],
    ) -> list[RolloutGrade]:
        """As many at once as the reserve holds; a group reward needs all of them together."""
        spec = read_spec(group.spec)
        is_joint = any(one.kind == "group_reward" for one in process.info.components)
        size = len(rollouts) if is_joint else self.sandboxes.at_once
        seed = grading_seed(spec.seed, group.ordinal, group.purpose)
        grades: list[RolloutGrade] = []
        for start in range(0, len(rollouts), size):
            part = rollouts[start : start + size]
            async with self.sandboxes.wave(package, part, group.grade_epoch) as port:
                grades += await process.grade(part, seed, port)
        return grades


def grading_seed(seed: int, ordinal: int, purpose: Purpose) -> int:
    """The same for the same task position of two jobs with one seed."""
    base = 2 if purpose is Purpose.EVALUATION else 1
    return (seed * 1_000_003 + ordinal) * 4 + base


def _rollout(member: ClosedMember, task: Task, trajectory: Trajectory) -> Rollout:
    artefacts = dict(trajectory.artefacts)
    state = artefacts.pop(STATE_ARTEFACT, None)
    return Rollout(
        id=member.rollout_id,
        index=member.index,
        task=task,
        messages=messages_from_json(cast("Sequence[Json]", trajectory.messages)),
        end=trajectory.end,
        turns=len(trajectory.turns),
        state=None if state is None else json.loads(state),
        artefacts=artefacts,
    )
