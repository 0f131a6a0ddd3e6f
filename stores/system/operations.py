"""Operations as their chores see them: taken up with a bounded count of starts, ended once.

The row is the truth and the message only wakes: a chore that kills its process is started again at
most STARTS_MAX times, then it failed as poison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import ProjectId
from infra.names import PLAN
from stores import tables as t

operation = t.operation

STARTS_MAX: Final = 3
"""A chore that ended its process so often would end the next one too."""

PLAN_STARTS_MAX: Final = 2
"""A plan has no part that could be away for a while: what kills it twice is the plan, and each start
costs minutes for which others wait."""

OPEN_STATES: Final = ("pending", "running")


@dataclass(frozen=True, slots=True)
class TakenOperation:
    """An operation that this process may work on."""

    operation_id: str
    project_id: ProjectId
    kind: str
    request: Mapping[str, object]


async def take(connection: AsyncConnection, operation_id: str) -> TakenOperation | None:
    """Count a start and take the operation; None when it has ended, or ends now as poison."""
    row = (
        await connection.execute(
            update(operation)
            .where(operation.c.id == operation_id, operation.c.state.in_(OPEN_STATES))
            .values(state="running", starts=operation.c.starts + 1, started_at=func.now())
            .returning(operation)
        )
    ).first()
    if row is None:
        return None
    starts_max = PLAN_STARTS_MAX if row.kind == PLAN else STARTS_MAX
    if row.starts > starts_max:
        cause = f"its process died {starts_max} times"
        await fail(connection, operation_id, "poison", cause)
        return None
    return TakenOperation(row.id, row.project_id, row.kind, row.request)


async def finish(
    connection: AsyncConnection, operation_id: str, result: Mapping[str, object]
) -> None:
    """Write the result; the first end wins."""
    await connection.execute(
        update(operation)
        .where(operation.c.id == operation_id, operation.c.state.in_(OPEN_STATES))
        .values(state="done", result=dict(result), ended_at=func.now())
    )


async def fail(connection: AsyncConnection, operation_id: str, code: str, detail: str) -> None:
    """Write why there is no result; the first end wins."""
    await connection.execute(
        update(operation)
        .where(operation.c.id == operation_id, operation.c.state.in_(OPEN_STATES))
        .values(state="failed", error={"code": code, "detail": detail}, ended_at=func.now())
    )
