"""Wire forms of job rows, validations and places in series."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.jobs.outcome import Outcome
from api.problems import Finding as Found
from domain.states import TERMINAL, JobState
from venusrl.models.common import Finding
from venusrl.models.jobs import Failure, Job, Resolved, Validation

STANDSTILL: Final[Mapping[str, Any]] = {
    "rollouts": {"running": 0, "waiting": 0},
    "staleness": {},
    "sandboxes": 0,
    "tokens_per_s": 0.0,
    "evaluation": None,
    "filling_step": None,
    "blocked": None,
    "predicted_start": None,
    "predicted_start_reason": None,
    "hosts": [],
}
"""Progress of a job that has ended, in what is only so while it runs."""

WAITING: Final = frozenset({JobState.QUEUED, JobState.RESUMING})
"""States in which a job may wait for its gang."""

PLANNED: Final = "per_batch"
"""The one count of groups that says what the plan is, not what stands open."""


def job_of(row: Any, findings: Sequence[Found] = ()) -> Job:
    """Wire form of a job row joined with its attempt's number."""
    return Job(
        id=row.id,
        project_id=row.project_id,
        name=row.name,
        state=row.state,
        desired=row.desired,
        attempt_id=row.attempt_id,
        attempt=row.attempt_number,
        generation=row.generation,
        observed_generation=row.observed_generation,
        spec=row.spec,
        labels=row.labels,
        queue_reason=row.queue_reason,
        queue_position=row.queue_position,
        predicted_start=_predicted(row, "predicted_start"),
        predicted_start_reason=_predicted(row, "predicted_start_reason"),
        failure=None if row.failure is None else Failure.model_validate(row.failure),
        best_checkpoint=row.best_checkpoint,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        findings=findings_of(findings),
    )


def _predicted(row: Any, name: str) -> Any:
    """What the scheduler said last of the start of a job that still waits for it."""
    return row.progress.get(name) if JobState(row.state) in WAITING else None


def progress_of(row: Any) -> dict[str, Any]:
    """What the scheduler said last; of an ended job without what no longer goes on."""
    said = dict(row.progress)
    if said and JobState(row.state) in TERMINAL:
        # Said before the end, at which the scheduler forgets the job.
        groups = said.get("groups", {}).items()
        counts = {name: count if name == PLANNED else 0 for name, count in groups}
        said |= {**STANDSTILL, "groups": counts}
    return {
        **said,
        "job_id": row.id,
        "state": row.state,
        "reason": row.queue_reason,
        "queue_position": row.queue_position,
        "failure": row.failure,
    }


def findings_of(found: Sequence[Found]) -> list[Finding]:
    """Wire form of findings."""
    return [Finding.model_validate(one.as_json()) for one in found]


def validation_of(outcome: Outcome) -> Validation:
    """Wire form of an outcome."""
    return Validation(
        valid=outcome.is_valid,
        findings=findings_of(outcome.findings),
        spec=outcome.spec,
        resolved=[Resolved(pointer=p, value=v, reason=r) for p, v, r in outcome.resolved],
    )


def etag_of(row: Any) -> str:
    """Changes with everything that PATCH may change, and with the generation."""
    spec = row.spec
    held = [row.generation, row.name, row.labels, spec["stop"]["max_steps"]]
    # Jobs of a former version have neither.
    held += [spec["resources"].get("priority"), spec.get("budget")]
    text = json.dumps(held, sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'


def matches(etag: str, wanted: str) -> bool:
    """Whether an If-Match header names this tag (RFC 9110 section 13.1.1: weak tags never match)."""
    return any(one.strip() in ("*", etag) for one in wanted.split(","))


def cursor_of(row: Any) -> str:
    """The place of a metric point, for the next page's `after`."""
    return f"{row.attempt_number}:{row.step}:{row.name}"


def place_of(cursor: str | None) -> tuple[int, int, str] | None:
    """The place that a cursor names."""
    if cursor is None:
        return None
    number, step, name = cursor.split(":", 2)
    return int(number), int(step), name
