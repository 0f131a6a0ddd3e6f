"""What a branch starts from, read once: the record of a rollout, its task, its rules.

Nothing of a border was kept while the rollout ran. Its tokens, its seed and its environment's version
are what makes one again (`branch_replay.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from domain.errors import PayloadUnreadable
from domain.ids import AttemptId, GroupId, JobId, RolloutId
from domain.seeds import rollout_seed
from domain.states import Purpose
from domain.trajectory import Trajectory
from infra.codec import convert, from_msgpack
from stores.system import branching
from stores.system.operations import TakenOperation
from venusrl.env.host.manifest import Manifest
from venusrl.env.messages import Json, Task
from venusrl.env.wire import BadRecord, task_from_json
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.fleet import job_spec as grading_spec
from workers.fleet.grading import grading_seed
from workers.rollout.job_spec import JobSpec, RolloutLimits, SamplingSpec

NOT_BRANCHABLE: Final = "not_branchable"
"""The record is no exact account of what was sampled."""


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """What the operation's row asks for; the gateway has filled in turns and checkpoint."""

    rollout_id: str
    checkpoint_id: str
    turns: tuple[int, ...]
    n: int
    tool_output: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A recorded rollout with what made it."""

    rollout_id: RolloutId
    index: int
    group_id: GroupId
    job_id: JobId
    attempt_id: AttemptId
    tenant: str
    version_id: str
    split: str
    task: Task
    config: Mapping[str, Json]
    seed: int
    """Of the recorded try: the environment's and the sandbox's."""
    grading_seed: int
    record: Trajectory
    rules: JobSpec
    is_evaluation: bool
    environment: int

    @property
    def sampling(self) -> SamplingSpec:
        """How the rollout sampled."""
        return self.rules.sampling(self.is_evaluation)

    def limits(self, manifest: Manifest, context_tokens: int) -> RolloutLimits:
        """What bounded the rollout; the job's own numbers come before its environment's."""
        own = self.rules.environment(self.environment, self.is_evaluation)
        context = min(context_tokens, self.rules.model.context_tokens or context_tokens)
        return RolloutLimits(
            context_tokens=context,
            max_turns=own.max_turns or manifest.limits.max_turns,
            max_tokens_per_turn=self.sampling.max_tokens_per_turn,
            max_tokens=self.rules.rollout.max_tokens,
            wall_s=own.wall_s or manifest.limits.wall_s,
        )


async def read_source(
    tools: ChoreTools, operation: TakenOperation, request: BranchRequest
) -> Source:
    """Everything that the rows and the object store hold. Raises ChoreFailed."""
    async with tools.database.begin() as connection:
        row = await branching.rollout_to_branch(
            connection, operation.project_id, request.rollout_id
        )
    if row is None:
        raise ChoreFailed("not_found", f"there is no rollout {request.rollout_id}")
    try:
        rules, grading = convert(row.spec, JobSpec), grading_spec.read_spec(row.spec)
        record = await _record(tools, row)
        purpose = Purpose(row.purpose)
        listed = grading.task_list(purpose, row.environment)
        task = await _task(tools, row.tasks.get(listed), row.task_id)
    except (PayloadUnreadable, msgspec.MsgspecError, BadRecord) as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error
    _check(record, request)
    return Source(
        rollout_id=RolloutId(row.id),
        index=row.member_index,
        group_id=GroupId(row.group_id),
        job_id=JobId(row.job_id),
        attempt_id=AttemptId(row.attempt_id),
        tenant=row.organization_id,
        version_id=row.environment_version_id,
        split=listed.rpartition("/")[2],
        task=task,
        config=grading.config(purpose, row.environment),
        seed=rollout_seed(grading.seed, RolloutId(row.id), record.try_),
        grading_seed=grading_seed(grading.seed, row.ordinal, purpose),
        record=record,
        rules=rules,
        is_evaluation=purpose is Purpose.EVALUATION,
        environment=row.environment,
    )


async def _record(tools: ChoreTools, row: Any) -> Trajectory:
    if row.trajectory_uri is None:
        raise ChoreFailed("no_trajectory", "the rollout left no record that could be replayed")
    data = await tools.blobs.read(row.trajectory_uri, row.trajectory_sha)
    return from_msgpack(data, Trajectory)


async def _task(tools: ChoreTools, stored: Any, task_id: str) -> Task:
    if stored is None:
        raise ChoreFailed("not_found", "the job's task list is gone")
    data = await tools.blobs.read(str(stored["uri"]), str(stored["sha"]))
    for line in data.decode().splitlines():
        if line.strip() and str((found := json.loads(line))["id"]) == task_id:
            return task_from_json(cast("Json", found))
    raise ChoreFailed("not_found", f"task {task_id} is not in its split")


def _check(record: Trajectory, request: BranchRequest) -> None:
    """A border lies before a turn that was sampled, in a record whose ids are exact."""
    turns = len(record.turns)
    beyond = [turn for turn in request.turns if not 0 <= turn < turns]
    if beyond:
        raise ChoreFailed("no_such_turn", f"turn {beyond[0]} of a rollout with {turns} turns")
    if record.metrics.get("drift", 0.0) > 0:
        raise ChoreFailed(NOT_BRANCHABLE, "its prompts did not continue what was sampled")
    if request.tool_output is not None and 0 in request.turns:
        raise ChoreFailed("no_tool_output", "before turn 0 no tool has answered")
