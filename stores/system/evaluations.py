"""What a finished evaluation leaves: its row, its metrics, its estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Double, cast, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import commands as c
from domain.estimates import FULL_MARKS, Estimate
from domain.evaluations import (
    Component,
    EnvironmentResult,
    EvaluatedUse,
    EvaluationResult,
    means_of,
)
from domain.ids import AttemptId
from stores import tables as t

group, rollout = t.rollout_group, t.rollout

PREFIX: Final = "evaluation"
"""Of the names of its metrics; those of one environment go on with its name."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the spec says of a job's evaluations."""

    uses: Sequence[EvaluatedUse]
    is_apart: bool
    """Whether each environment is shown besides the total."""
    select_best: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """Result of one evaluation: mean reward over the scored rollouts, and how many had no verdict."""

    tasks: int
    scored: int
    unscorable: int
    score: float | None
    seconds: float
    estimates: tuple[Estimate, ...]
    selected: float | None
    """What checkpoints are compared by."""
    components: Mapping[str, float]
    environments: Sequence[Mapping[str, object]]


async def finish_evaluation(
    connection: AsyncConnection, command: c.FinishEvaluation, evaluated: Evaluated
) -> EvaluationScore:
    """Aggregate the evaluation's rollouts and write its row and metrics; idempotent."""
    result, seconds = await _result(connection, command, evaluated.uses)
    shown = result.environments if evaluated.is_apart else ()
    score = EvaluationScore(
        tasks=sum(one.tasks for one in result.environments),
        scored=sum(one.scored for one in result.environments),
        unscorable=sum(one.unscorable for one in result.environments),
        score=result.score,
        seconds=seconds,
        estimates=result.estimates,
        selected=result.selected(evaluated.select_best),
        components=result.components,
        environments=[_document(one) for one in shown],
    )
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
            selected=score.selected,
            components=dict(score.components),
            environments=list(score.environments),
        )
        .on_conflict_do_nothing()
    )
    values = _values(PREFIX, score.score, score.estimates)
    for one in shown:
        values += _values(f"{PREFIX}/{one.use.name}", one.score, one.estimates)
    if values:
        await _write_metrics(connection, command.attempt_id, command.step, values)
    return score


def _document(one: EnvironmentResult) -> dict[str, object]:
    return {
        "name": one.use.name,
        "ref": one.use.ref,
        "weight": one.use.weight,
        "tasks": one.tasks,
        "scored": one.scored,
        "unscorable": one.unscorable,
        "score": one.score,
        "estimates": [asdict(estimate) for estimate in one.estimates],
        "components": means_of(one.components),
    }


def _values(prefix: str, score: float | None, shown: Sequence[Estimate]) -> list[tuple[str, float]]:
    if score is None:
        return []
    return [(f"{prefix}/score", score), *((f"{prefix}/{one.name}", one.value) for one in shown)]


async def _result(
    connection: AsyncConnection, command: c.FinishEvaluation, uses: Sequence[EvaluatedUse]
) -> tuple[EvaluationResult, float]:
    """What the rows say by environment, and the seconds since the first group was opened."""
    rows = await _tasks(connection, command)
    components = await _components(connection, command)
    environments = []
    for number, use in enumerate(uses):
        own = [row for row in rows if row.environment == number]
        environments.append(
            EnvironmentResult(
                use=use,
                tasks=len(own),
                unscorable=sum(row.unscorable for row in own),
                rewards=[[float(reward) for reward in row.rewards or ()] for row in own],
                components=components.get(number, {}),
                full_marks=_full_marks(own),
            )
        )
    seconds = max((float(row.seconds) for row in rows), default=0.0)
    return EvaluationResult(environments), seconds


def _full_marks(rows: Sequence[Any]) -> float:
    """Of an environment, as its verdicts say; those graded before they said it do not count.

    Weights belong to the environment's version, so that they are the same for all of its tasks.
    """
    return max((row.full_marks for row in rows if row.full_marks is not None), default=FULL_MARKS)


async def _tasks(connection: AsyncConnection, command: c.FinishEvaluation) -> Sequence[Any]:
    """One row a task: its rewards, its rollouts without one, full marks, when it was opened."""
    query = (
        select(
            group.c.environment,
            func.array_agg(rollout.c.reward).filter(rollout.c.reward.is_not(None)).label("rewards"),
            func.count().filter(rollout.c.verdict == "unscorable").label("unscorable"),
            func.max(cast(rollout.c.components["full_marks"].astext, Double)).label("full_marks"),
            func.extract("epoch", func.now() - func.min(group.c.created_at)).label("seconds"),
        )
        .select_from(rollout.join(group, rollout.c.group_id == group.c.id))
        .where(*_of(command))
        .group_by(group.c.id)
    )
    return (await connection.execute(query)).all()


async def _components(
    connection: AsyncConnection, command: c.FinishEvaluation
) -> dict[int, dict[str, Component]]:
    """Means of what the rewards and metrics of scored rollouts are as numbers, by environment."""
    found: dict[int, dict[str, Component]] = {}
    # Rewards come last: a metric of the same name gives way.
    for kind in ("metrics", "rewards"):
        each = func.jsonb_each(rollout.c.components[kind]).table_valued("key", "value").lateral()
        number = cast(each.c.value.op("#>>")(text("'{}'")), Double)
        query = (
            select(group.c.environment, each.c.key, func.avg(number), func.count())
            .select_from(
                rollout.join(group, rollout.c.group_id == group.c.id).join(each, text("true"))
            )
            .where(
                *_of(command),
                rollout.c.verdict == "scored",
                func.jsonb_typeof(each.c.value) == "number",
            )
            .group_by(group.c.environment, each.c.key)
        )
        for environment, name, mean, count in await connection.execute(query):
            found.setdefault(environment, {})[name] = Component(float(mean), count)
    return found


def _of(command: c.FinishEvaluation) -> tuple[Any, ...]:
    return (
        group.c.attempt_id == command.attempt_id,
        group.c.purpose == "evaluation",
        group.c.policy_version == command.step,
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
