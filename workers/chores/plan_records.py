"""Reads what a project's job has left, as `simulation.recorded` wants it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from domain.engine import PAGE_TOKENS
from domain.errors import PayloadUnreadable
from domain.ids import ProjectId
from domain.trajectory import TurnSpan
from infra.codec import from_msgpack
from infra.settings import Settings
from kv.rules import rules_of
from simulation.recorded import (
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    RecordedStep,
    RecordedTurn,
    turns_of,
)
from stores.system import recorded as store
from stores.system.recorded import EngineSizes, KeptRollout, RecordedOf
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.chores.plan_spec import read_planned


@dataclass(frozen=True, slots=True)
class _Turns:
    """The part of a stored trajectory that a plan reads; tokens are skipped."""

    turns: tuple[TurnSpan, ...]


async def read_recorded(
    tools: ChoreTools, project_id: ProjectId, job_id: str
) -> tuple[RecordedOf, RecordedJob]:
    """The job and what is kept of it. Raises ChoreFailed."""
    async with tools.database.begin() as connection:
        found = await store.find(connection, project_id, job_id)
        if found is None:
            raise ChoreFailed("not_found", f"there is no job {job_id}")
        kept = await store.rollouts(connection, found.attempt_id)
        steps = await store.steps(connection, found.attempt_id)
        syncs = await store.syncs_s(connection, found.attempt_id)
        engines = await store.engines(connection, found.attempt_id)
        sizes = await store.engine_sizes(connection, found.attempt_id)
    groups = [
        await _group(tools, list(members)) for _, members in groupby(kept, lambda one: one.ordinal)
    ]
    first_s = min((group.opened_s for group in groups), default=0.0)
    steps = [step for step in steps if step.committed_s > first_s]
    begins_s = [first_s, *(step.committed_s for step in steps)]
    slots, kv_tokens = sizes_of(tools.settings, sizes)
    job = RecordedJob(
        groups=tuple(group for group in groups if group.rollouts),
        steps=tuple(
            RecordedStep(
                step=one.step,
                committed_s=one.committed_s,
                busy_s=one.busy_s,
                update_s=one.update_s,
                trained_tokens=one.trained_tokens,
                staleness=one.staleness,
                assigned_s=one.assigned_s,
                began_s=began_s,
            )
            for one, began_s in zip(steps, begins_s, strict=False)
        ),
        syncs_s=tuple(syncs),
        engines=max(engines, 1),
        slots=slots,
        kv_tokens=kv_tokens,
        streams=rules_of(read_planned(found.spec).scheduling.choice).streams,
    )
    return found, job


def sizes_of(settings: Settings, told: EngineSizes | None) -> tuple[int, int]:
    """Slots and KV tokens of one engine: as it reported them, else as they are set."""
    if told is not None:
        return told.slots, told.kv_pages * PAGE_TOKENS
    limits = settings.limits
    return limits.engine_slots, limits.kv_pages * PAGE_TOKENS


async def _group(tools: ChoreTools, members: Sequence[KeptRollout]) -> RecordedGroup:
    first = members[0]
    rollouts = [await _rollout(tools, one) for one in members]
    return RecordedGroup(
        ordinal=first.ordinal,
        opened_s=first.opened_s,
        closed_s=first.group_closed_s,
        graded_s=first.graded_s,
        rollouts=tuple(one for one in rollouts if one.turns),
    )


async def _rollout(tools: ChoreTools, one: KeptRollout) -> RecordedRollout:
    """Its turns; a trajectory that cannot be read leaves a rollout without any."""
    return RecordedRollout(
        host=one.host_id,
        placed_s=one.placed_s,
        ended_s=one.ended_s,
        turns=await _turns(tools, one),
        reward=one.reward,
    )


async def _turns(tools: ChoreTools, one: KeptRollout) -> tuple[RecordedTurn, ...]:
    try:
        data = await tools.blobs.read(one.trajectory_uri, one.trajectory_sha)
        spans = from_msgpack(data, _Turns).turns
    except (PayloadUnreadable, msgspec.ValidationError):
        return ()
    known = [
        {
            "start": float(span.start),
            "sampled_end": float(span.sampled_end),
            "generate_s": span.generate_s,
            "tool_s": span.tool_s,
        }
        for span in spans
    ]
    same = [
        index > 0 and span.segment == spans[index - 1].segment for index, span in enumerate(spans)
    ]
    return turns_of(known, same)
