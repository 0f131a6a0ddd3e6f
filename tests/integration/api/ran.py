"""A job that ran, as its hosts would have recorded it: groups, turns, placements, steps, measures."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from domain.ids import AttemptId, GroupId, RolloutId, TaskId, group_id, rollout_id
from domain.trajectory import Segment, Trajectory, TurnSpan
from infra.codec import to_msgpack
from stores import tables as t
from tests.integration.api.world import Tenant, World

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)

GROUP_S: Final = 4.0
"""A group is placed after 0.5 s, generates and waits for its tool, is graded after 4 s."""

BATCH: Final = {"group_size": 2, "groups_per_batch": 2}


def ran(tenant: Tenant, steps: int = 3) -> dict[str, Any]:
    """An ended job of two groups of two a step, four seconds a group, one group after the other."""
    spec: dict[str, Any] = {
        "rollout": BATCH,
        "scheduling": {"max_staleness": 0, "async_ratio": 1.0, "order": "longest"},
        "evaluation": None,
        "stop": {"max_steps": steps},
    }
    job = tenant.ended(**spec)
    for step in range(1, steps + 1):
        _step(tenant, job, step)
    tenant.world.add(
        t.host_interval, host_id="host_e", number=1, kind="engine", job_id=job["id"],
        attempt_id=job["attempt_id"], epoch=1, opened="declared", started_at=BEGAN, ready_at=BEGAN,
        ended_at=BEGAN + timedelta(hours=1),
    )  # fmt: skip
    return job


def _step(tenant: Tenant, job: dict[str, Any], step: int) -> None:
    world, attempt = tenant.world, job["attempt_id"]
    groups = [_group(tenant, job, (step - 1) * 2 + place) for place in range(2)]
    committed = BEGAN + timedelta(seconds=2 * GROUP_S * step + step)
    shared = {"job_id": job["id"], "attempt_id": attempt}
    world.add(
        t.train_step, step=step, epoch=1, group_ids=groups, payloads=[], learning_rate=1e-4,
        weights_sha="w", weights_uri="w", probe_uri="p", created_at=committed, **shared,
    )  # fmt: skip
    for place, group in enumerate(groups):
        world.add(
            t.batch_member, step=step, position=place, group_id=group, staleness=0,
            created_at=committed - timedelta(seconds=1), **shared,
        )  # fmt: skip
    for name, value in (("trainer_busy_s", 0.8), ("update_s", 0.4), ("sync_s", 0.1)):
        world.add(t.metric, attempt_id=attempt, step=step, name=name, value=value)


def _group(tenant: Tenant, job: dict[str, Any], ordinal: int) -> GroupId:
    name = group_id(AttemptId(job["attempt_id"]), ordinal)
    # Each step takes a second more than its two groups: the update.
    opened = BEGAN + timedelta(seconds=GROUP_S * ordinal + ordinal // 2)
    owner = {
        "job_id": job["id"],
        "attempt_id": job["attempt_id"],
        "organization_id": tenant.organization_id,
    }
    tenant.world.add(
        t.rollout_group, id=name, ordinal=ordinal, purpose="train", task_id=f"task-{ordinal}",
        environment_version_id="ev", policy_version=0, size=2, open=0,
        created_at=opened, closed_at=opened + timedelta(seconds=GROUP_S - 0.3),
        graded_at=opened + timedelta(seconds=GROUP_S), disposition="trained(1)", **owner,
    )  # fmt: skip
    for index in range(2):
        _rollout(tenant.world, rollout_id(name, index), opened, ordinal + index, **owner)
    return name


def _rollout(world: World, name: RolloutId, opened: datetime, size: int, **owner: Any) -> None:
    group = GroupId("grp_" + name.removeprefix("ro_").rpartition("_")[0])
    placed, outputs = opened + timedelta(seconds=0.5), (20 + 5 * size, 10 + 3 * size)
    spans, at = [], 30
    for turn, output in enumerate(outputs):
        seconds = 0.02 * output
        spans.append(TurnSpan(turn, at, at + output, at + output + 5, 1, "stop", seconds, 0.4))
        at += output + 5
    trajectory = Trajectory(
        name, group, TaskId("t"), 1, 1, "done",
        (Segment((1,) * at, (0,) * at, (0.0,) * at, (-1,) * at),), tuple(spans), (),
    )  # fmt: skip
    uri, sha = world.store(f"jobs/x/{name}.msgpack", to_msgpack(trajectory))
    ended = placed + timedelta(seconds=sum(span.generate_s + span.tool_s for span in spans))
    world.add(
        t.rollout, id=name, group_id=group, index=int(name.rpartition("_")[2]), purpose="train",
        task_id="t", end="done", verdict="scored", reward=float(size % 2), tokens=at,
        sampled_tokens=sum(outputs), turns=2, hop=1, closed_at=ended, disposition="trained(1)",
        trajectory_uri=uri, trajectory_sha=sha, **owner,
    )  # fmt: skip
    world.add(
        t.rollout_hop, rollout_id=name, hop=1, **{"try": 1}, attempt_id=owner["attempt_id"],
        host_id="host_e", placed_at=placed, ended_at=ended, engine_s=1.0, tool_wait_s=0.0,
    )  # fmt: skip
