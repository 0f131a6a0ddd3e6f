"""The checks on an ended job find what they are there to find: each on a record with one defect."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from domain.ids import GroupId, RolloutId, TaskId
from domain.trajectory import Segment, Trajectory
from tests.support.job_checks import check_rows, check_trajectories
from tests.support.job_rows import JobRows, Record

ROLLOUT = RolloutId("ro_x_000000_000")
GROUP = GroupId("grp_x_000000")


def whole_job() -> JobRows:
    """One group of one rollout, trained by the one planned step."""
    here = {"job_id": "job_x", "attempt_id": "att_x"}
    spec = {
        "stop": {"max_steps": 1},
        "scheduling": {"max_staleness": 2},
        "environments": [{"ref": "diary@1"}],
    }
    return JobRows(
        job={"id": "job_x", "attempt_id": "att_x", "spec": spec},
        attempts=({"id": "att_x", "number": 1, "base_step": 0},),
        groups=(
            {
                "id": GROUP,
                "size": 1,
                "disposition": "trained(1)",
                "closed_at": 1,
                "purpose": "train",
                "environment": 0,
            }
            | here,
        ),
        rollouts=(
            here
            | {
                "id": ROLLOUT,
                "group_id": GROUP,
                "try": 2,
                "hop": 3,
                "closed_at": 1,
                "end": "done",
                "verdict": "scored",
                "reward": 1.0,
                "disposition": "trained(1)",
                "sampled_tokens": 2,
            },
        ),
        tries=(
            {"rollout_id": ROLLOUT, "try": 1, "hop": 1, "end": "sandbox_lost"},
            {"rollout_id": ROLLOUT, "try": 2, "hop": 3, "end": "done"},
        ),
        members=(here | {"step": 1, "position": 0, "group_id": GROUP, "staleness": 0},),
        steps=(
            here | {"step": 0, "group_ids": [], "diverged": False},
            here | {"step": 1, "group_ids": [GROUP], "diverged": False},
        ),
        leases=(),
    )


def changed(rows: JobRows, table: str, at: int, **columns: Any) -> JobRows:
    """The same rows with other columns in one of them."""
    found = list(cast("tuple[Record, ...]", getattr(rows, table)))
    found[at] = {**found[at], **columns}
    return with_rows(rows, table, tuple(found))


def doubled(rows: JobRows, table: str) -> JobRows:
    """The last row of a table twice."""
    found = cast("tuple[Record, ...]", getattr(rows, table))
    return with_rows(rows, table, (*found, found[-1]))


def with_rows(rows: JobRows, table: str, found: tuple[Record, ...]) -> JobRows:
    """The same rows with one table replaced."""
    fields: dict[str, Any] = {table: found}
    return replace(rows, **fields)


def diary(written: str, end: str = "done") -> Trajectory:
    """A trajectory of two turns with this file in its sandbox."""
    return Trajectory(
        rollout_id=ROLLOUT,
        group_id=GROUP,
        task_id=TaskId("t"),
        try_=2,
        hop=3,
        end=end,
        segments=(Segment((5, 6, 7), (0, 1, 1), (0.0, -1.0, -1.0), (-1, 0, 1)),),
        turns=(),
        messages=(
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "01"},
            {"role": "assistant", "content": "b"},
        ),
        artefacts={"diary.jsonl": written},
    )


FIRST = '{"turn": 0, "text": "a"}\n'
SECOND = '{"turn": 1, "text": "b"}\n'


def test_whole_job_has_no_findings() -> None:
    rows = whole_job()
    assert check_rows(rows) == []
    assert check_trajectories(rows, {ROLLOUT: diary(FIRST + SECOND)}) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: replace(rows, steps=rows.steps[:1]),
        lambda rows: changed(rows, "steps", 0, step=5),
        lambda rows: doubled(rows, "members"),
        lambda rows: doubled(rows, "steps"),
        lambda rows: replace(rows, members=()),
        lambda rows: changed(rows, "members", 0, position=1),
        lambda rows: changed(rows, "members", 0, staleness=3),
        lambda rows: changed(rows, "groups", 0, disposition="pending"),
        lambda rows: changed(rows, "groups", 0, closed_at=None),
        lambda rows: changed(rows, "groups", 0, size=2),
        lambda rows: changed(rows, "rollouts", 0, closed_at=None),
        lambda rows: changed(rows, "rollouts", 0, verdict=None),
        lambda rows: changed(rows, "rollouts", 0, disposition="pending"),
        lambda rows: changed(rows, "rollouts", 0, disposition="trained(2)"),
        lambda rows: changed(rows, "rollouts", 0, verdict="unscorable"),
        lambda rows: changed(rows, "rollouts", 0, end="env_failed"),
        lambda rows: changed(rows, "rollouts", 0, hop=2),
        lambda rows: replace(rows, tries=rows.tries[1:]),
        lambda rows: changed(rows, "tries", 0, end="done"),
        lambda rows: changed(rows, "tries", 1, end="truncated"),
        lambda rows: changed(rows, "tries", 0, hop=4),
    ],
)
def test_one_defect_in_the_rows_is_found(spoil: Callable[[JobRows], JobRows]) -> None:
    assert check_rows(spoil(whole_job())) != []


@pytest.mark.parametrize(
    "trajectory",
    [
        diary(""),
        diary(FIRST),
        diary(FIRST + SECOND + SECOND),
        diary(SECOND + FIRST),
        diary(FIRST + SECOND, end="truncated"),
        replace(diary(FIRST + SECOND), try_=1),
        replace(diary(FIRST + SECOND), hop=4),
        replace(
            diary(FIRST + SECOND),
            segments=(Segment((5, 6, 7), (0, 1, 1), (0.0, -1.0, -1.0), (-1, 1, 0)),),
        ),
        replace(
            diary(FIRST + SECOND),
            segments=(Segment((5, 6, 7), (0, 1, 1), (0.0, -1.0, -1.0), (-1, 1, 2)),),
        ),
        replace(diary(FIRST + SECOND), segments=(Segment((5, 6), (0, 1), (0.0, -1.0), (-1, 1)),)),
    ],
)
def test_one_defect_in_a_trajectory_is_found(trajectory: Trajectory) -> None:
    assert check_trajectories(whole_job(), {ROLLOUT: trajectory}) != []
