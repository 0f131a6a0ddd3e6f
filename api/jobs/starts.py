"""Verbs that start from a checkpoint: restart makes a new attempt, branch a new job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs import service
from api.jobs.outcome import Outcome
from api.jobs.resolution import put_at, value_at
from api.jobs.uses import FROM_ELSEWHERE, PINNED
from api.jobs.views import job_of
from api.problems import Finding, Problem, conflict, invalid, not_found
from domain.states import TERMINAL, JobState
from stores import checkpoints, jobs
from stores.jobs import Start
from stores.unit_of_work import AsyncConnection
from venusrl.models.jobs import Branch, Restart

Asked = tuple[str, str | None]
"""A job, and the checkpoint of it that is asked for."""

DATA_FIELDS: Final = ("config", "datasets", "filter", "limit", "ref", "shuffle", "split")
"""Fields of an environment that decide which task an ordinal names; of several, the weights too."""

LAST_STEP: Final = "/stop/max_steps"


async def restart(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, Restart],
) -> dict[str, Any]:
    """Make a new attempt from a checkpoint (the newest one by default) of an ended job."""
    job_id, body = asked
    row = await service.locked(connection, caller, job_id)
    if JobState(row.state) not in TERMINAL:
        raise conflict(f"The job has not ended ({row.state}); cancel it first.", "job_active")
    if not row.tasks:
        detail = "The job ended before its task lists were read; submit its spec as a new job."
        raise conflict(detail, "job_never_started")
    found = await _checkpoint(connection, caller, (job_id, body.checkpoint))
    start = Start() if found is None else _start(found)
    _check_steps_left(start, row.spec)
    attempt_id = gateway.ids.new("att")
    await jobs.restart(connection, caller.project_id, job_id, attempt_id, start)
    return job_of(await service.locked(connection, caller, job_id)).model_dump(mode="json")


async def branch(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, Branch],
) -> dict[str, Any]:
    """Make a new job from the copy of a job's spec and one of its checkpoints.

    Steps are counted on from the checkpoint's. What the user left `auto` is resolved anew when
    something is overridden; the versions of environment and datasets stay.
    """
    job_id, body = asked
    row = await service.locked(connection, caller, job_id)
    found = await _checkpoint(connection, caller, (job_id, body.checkpoint))
    if found is None:
        detail = "The job has no checkpoint yet; submit its spec anew, or wait for the first one."
        raise conflict(detail, "checkpoint_not_ready")
    former = reopened(row.spec, row.submitted_spec) if body.overrides else row.spec
    spec = laid_over(former, body.overrides)
    if body.name is not None:
        spec["name"] = body.name
    outcome = await service.check(connection, gateway, caller, spec)
    _check_base(row.spec, outcome)
    if outcome.spec is None:
        raise invalid([_placed(one, body) for one in outcome.findings], "The branch has errors.")
    start = _start(found)
    _check_steps_left(start, outcome.spec)
    if not _reads_same_tasks(row.spec, outcome.spec):
        start = replace(start, next_ordinal=0, unconsumed=())
    origin = {"branch_of": job_id, "checkpoint_id": found.id, "step": found.step}
    return await service.insert(connection, gateway, caller, (outcome, spec, start), **origin)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings are merged, everything else replaces, null included."""
    made = dict(below)
    for key, value in above.items():
        former = made.get(key)
        is_deeper = isinstance(value, Mapping) and isinstance(former, Mapping)
        made[key] = merged(former, value) if is_deeper else value  # type: ignore[arg-type]
    return made


def laid_over(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with changes; another strategy brings its own numbers, the former one's go with it."""
    changed, former = changes.get("scheduling"), spec.get("scheduling")
    if not isinstance(changed, Mapping) or not isinstance(former, Mapping):
        return merged(spec, changes)
    if changed.get("strategy", former.get("strategy")) == former.get("strategy"):
        return merged(spec, changes)
    kept = {key: value for key, value in former.items() if key != "knobs"}
    return merged({**spec, "scheduling": kept}, changes)


def reopened(spec: Mapping[str, Any], submitted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The spec with every `auto` back in its place, but for pinned versions.

    A last step that epochs lowered becomes again what was submitted.
    """
    made = merged({}, spec)
    for one in spec.get("resolved", ()):
        pointer = one["pointer"]
        if PINNED.fullmatch(pointer):
            continue
        opened = None if FROM_ELSEWHERE.fullmatch(pointer) else "auto"
        if pointer == LAST_STEP:
            opened = value_at(submitted or {}, pointer)
        made = _with(made, pointer, opened)
    return made


def _with(spec: Mapping[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a pointer, the original untouched."""
    made = _copied(spec)
    put_at(made, pointer, value)
    return dict(made)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _placed(one: Finding, body: Branch) -> Finding:
    """The finding with its pointer into the request."""
    if one.pointer == "/name" and body.name is not None:
        return one
    return replace(one, pointer=f"/overrides{one.pointer}")


def _check_base(former: Mapping[str, Any], outcome: Outcome) -> None:
    if outcome.spec is None or outcome.spec["model"]["base"] == former["model"]["base"]:
        return
    message = "A branch goes on from the checkpoint's weights; its base model stays."
    outcome.error("/model/base", "base_changed", message, "Submit a job of its own instead.")
    outcome.spec = None


def _reads_same_tasks(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an ordinal names the same task in both, so that the data position holds."""
    pairs = list(zip(one["environments"], other["environments"], strict=False))
    if len(one["environments"]) != len(other["environments"]) or one["seed"] != other["seed"]:
        return False
    fields = DATA_FIELDS if len(pairs) == 1 else (*DATA_FIELDS, "weight")
    # Specs of a former version lack some; empty is the same as missing.
    return all((a.get(name) or None) == (b.get(name) or None) for a, b in pairs for name in fields)


async def _checkpoint(connection: AsyncConnection, caller: ProjectCaller, asked: Asked) -> Any:
    """The checkpoint to start from, locked; None when there is none.

    Of the job itself, or the one that it started from. Raises 404 for another one, 409 when it is
    not whole.
    """
    job_id, wanted = asked
    project_id = caller.project_id
    origin = await jobs.start_of(connection, project_id, job_id)
    if wanted is None:
        newest = await checkpoints.newest(connection, project_id, job_id)
        chosen = origin if newest is None else newest.id
    else:
        chosen = wanted
    if chosen is None:
        return None
    found = await checkpoints.find(connection, project_id, chosen, lock=True)
    if found is None or (found.job_id != job_id and found.id != origin):
        raise not_found("checkpoint of this job", chosen)
    if found.state != "ready":
        raise conflict(f"The checkpoint is {found.state}.", "checkpoint_not_ready")
    return found


def _start(found: Any) -> Start:
    return Start(found.id, found.step, found.next_ordinal, found.unconsumed)


def _check_steps_left(start: Start, spec: Mapping[str, Any]) -> None:
    last = spec["stop"]["max_steps"]
    # Where only epochs bound the job, its last step is known once its tasks are counted.
    if last is not None and start.base_step >= last:
        detail = (
            f"The checkpoint's step {start.base_step} is the job's last step already;"
            " raise stop.max_steps."
        )
        raise Problem(409, "nothing_left", detail)
