"""What still needs a checkpoint. Who deletes one and who begins to use one lock its row first."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import ColumnElement, exists, func, select

from domain.states import TERMINAL
from stores import tables as t
from stores.asset_tables import model

checkpoint, attempt, job = t.checkpoint, t.attempt, t.job

NEWEST_KEPT: Final = 2
"""Of an attempt that has not ended: recovery falls back from the newest to the one before."""


def _starts_an_attempt() -> ColumnElement[bool]:
    return exists().where(
        attempt.c.from_checkpoint_id == checkpoint.c.id, attempt.c.ended_at.is_(None)
    )


def _is_base_of_a_job() -> ColumnElement[bool]:
    return exists().where(
        job.c.organization_id == checkpoint.c.organization_id,
        job.c.state.not_in([state.value for state in TERMINAL]),
        job.c.spec["model"]["base"].astext == checkpoint.c.id,
    )


def _is_being_imported() -> ColumnElement[bool]:
    return exists().where(
        model.c.organization_id == checkpoint.c.organization_id,
        model.c.state == "validating",
        model.c.deleted_at.is_(None),
        model.c.source["checkpoint"].astext == checkpoint.c.id,
    )


def _may_be_recovered_from() -> ColumnElement[bool]:
    newer = t.checkpoint.alias("newer")
    count = (
        select(func.count())
        .select_from(newer)
        .where(
            newer.c.attempt_id == checkpoint.c.attempt_id,
            newer.c.state == "ready",
            newer.c.step >= checkpoint.c.step,
            newer.c.id != checkpoint.c.id,
        )
        .correlate(checkpoint)
        .scalar_subquery()
    )
    runs = exists().where(attempt.c.id == checkpoint.c.attempt_id, attempt.c.ended_at.is_(None))
    return runs & (count < NEWEST_KEPT)


def uses_by_others() -> Mapping[str, ColumnElement[bool]]:
    """Whether others than its own attempt need the checkpoint of a row, by what a person is told."""
    return {
        "An attempt that has not ended starts from it.": _starts_an_attempt(),
        "A job that has not ended has it as its base model.": _is_base_of_a_job(),
        "A model is being made from it.": _is_being_imported(),
    }


def uses() -> Mapping[str, ColumnElement[bool]]:
    """Whether anything needs the checkpoint of a row, by what a person is told."""
    own = {"Its job has not ended and may go on from it.": _may_be_recovered_from()}
    return {**uses_by_others(), **own}
