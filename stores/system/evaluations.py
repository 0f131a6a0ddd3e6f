"""What a finished evaluation leaves: its row, its metrics, its estimates."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import commands as c
from domain.estimates import Estimate, estimates
from domain.ids import AttemptId
from stores import tables as t

group, rollout = t.rollout_group, t.rollout

SCORE: Final = "evaluation/score"
"""Metric of the mean reward over all scored rollouts."""


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """Result of one evaluation: mean reward over the scored rollouts, and how many had no verdict."""

    tasks: int
    scored: int
    unscorable: int
    score: float | None
    seconds: float
    estimates: tuple[Estimate, ...]


async def finish_evaluation(
    connection: AsyncConnection, command: c.FinishEvaluation
) -> EvaluationScore:
    """Aggregate the evaluation's rollouts and write its row and metrics; idempotent."""
    score = await _aggregate(connection, command)
    await connection.execute(
        insert(t.evaluation)
        .values(
            attempt_id=command.attempt_id,
            step=command.step,
            tasks=score.tasks,
            scored=score.scored,
            unscorable=score.unscorable,
            score=score.score,
            seconds=score.seconds,
            estimates=[asdict(one) for one in score.estimates],
        )
        .on_conflict_do_nothing()
    )
    if score.score is not None:
        values = [(SCORE, score.score)]
        values += [(f"evaluation/{one.name}", one.value) for one in score.estimates]
        await _write_metrics(connection, command.attempt_id, command.step, values)
    return score


async def _aggregate(connection: AsyncConnection, command: c.FinishEvaluation) -> EvaluationScore:
    """One row a task: its rewards, its rollouts without one, when it was opened."""
    query = (
        select(
            func.array_agg(rollout.c.reward).filter(rollout.c.reward.is_not(None)),
            func.count().filter(rollout.c.verdict == "unscorable"),
            func.extract("epoch", func.now() - func.min(group.c.created_at)),
        )
        .select_from(rollout.join(group, rollout.c.group_id == group.c.id))
        .where(
            group.c.attempt_id == command.attempt_id,
            group.c.purpose == "evaluation",
            group.c.policy_version == command.step,
        )
        .group_by(group.c.id)
    )
    rows = (await connection.execute(query)).all()
    rewards = [[float(reward) for reward in row[0] or ()] for row in rows]
    scored = [reward for task in rewards for reward in task]
    return EvaluationScore(
        tasks=len(rows),
        scored=len(scored),
        unscorable=sum(row[1] for row in rows),
        score=sum(scored) / len(scored) if scored else None,
        seconds=max((float(row[2]) for row in rows), default=0.0),
        estimates=estimates(rewards),
    )


async def _write_metrics(
    connection: AsyncConnection,
    attempt_id: AttemptId,
    step: int,
    values: Sequence[tuple[str, float]],
) -> None:
    rows = [
        {"attempt_id": attempt_id, "step": step, "name": name, "value": value}
        for name, value in values
    ]
    await connection.execute(insert(t.metric).values(rows).on_conflict_do_nothing())
