"""Stored rollouts of a job through the rewards of a local package: old against new.

What a job stored is what a grader saw: messages, the listed artefacts, the environment's last state.
Nothing is played again. What cannot be graded is a finding with a closed code, never a changed score.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from venusrl._errors import ApiError, NotFound
from venusrl.client import Client
from venusrl.env.host.artefacts import STATE_ARTEFACT
from venusrl.env.host.episode import Stage, grade_group
from venusrl.env.host.ports import EnvironmentFault, RolloutGrade
from venusrl.env.messages import Json, Rollout, Task
from venusrl.env.values import Unscorable, Value
from venusrl.env.wire import BadRecord, messages_from_json, value_from_json
from venusrl.models.jobs import Job
from venusrl.models.rollouts import Rollout as StoredRollout

TOTAL: Final = "total"
"""Name of the weighted sum beside the components."""

TOLERANCE: Final = 1e-9
"""Below it a value has not changed."""

NOT_GRADED: Final = frozenset({"env_failed", "sandbox_lost", "engine_lost", "cancelled"})
"""Ends of the infrastructure or the user: no job grades them either."""

Code: TypeAlias = Literal[
    "task_unknown", "no_trajectory", "unreadable", "artefact_not_stored", "group_incomplete"
]
"""Why something could not be graded as a job would."""


class RescoreStopped(Exception):
    """Nothing can be graded; the message says why."""


@dataclass(frozen=True, slots=True)
class RescoreFinding:
    """One thing that keeps rollouts from being graded, or from being graded alike."""

    code: Code
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Change:
    """One component of one rollout; None for no value on that side."""

    rollout_id: str
    component: str
    old: Value | None
    new: Value | None

    @property
    def is_same(self) -> bool:
        """Whether both sides say the same."""
        if isinstance(self.old, float) and isinstance(self.new, float):
            return math.isclose(self.old, self.new, rel_tol=0, abs_tol=TOLERANCE)
        if isinstance(self.old, Unscorable) and isinstance(self.new, Unscorable):
            return self.old.reason == self.new.reason
        return self.old is None and self.new is None


@dataclass(slots=True)
class Rescore:
    """All values, old and new, and what could not be compared."""

    values: list[Change] = field(default_factory=list)
    findings: list[RescoreFinding] = field(default_factory=list)
    artefacts: set[str] = field(default_factory=set)
    rollouts: int = 0
    graded: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """One component over all rollouts."""

    component: str
    old_mean: float | None
    new_mean: float | None
    old_unscorable: int
    new_unscorable: int
    changed: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Source:
    """The platform's side."""

    client: Client
    job: Job
    limit: int
    purpose: str | None = None
    places: dict[str, int] = field(default_factory=dict)
    """Where the environments of its groups stand in the spec, once they are read."""

    def split(self, purpose: str, group_id: str = "") -> str:
        """The split that rollouts of a purpose come from."""
        evaluation = self.job.spec.get("evaluation") or {}
        use = self._uses(purpose)[self._places().get(group_id, 0)]
        if purpose == "evaluation" and not evaluation.get("environments"):
            return str(evaluation.get("split", "test"))
        return str(use.get("split", "train"))

    @property
    def config(self) -> Mapping[str, Json]:
        """What the job configured its environment with."""
        config: Mapping[str, Json] = self._environment().get("config") or {}
        return config

    def groups(self) -> Iterator[tuple[list[StoredRollout], bool]]:
        """Rollouts that a grader may look at, by group, and whether the limit may have cut it."""
        filters = {"purpose": self.purpose} if self.purpose else {}
        found = list(islice(self.client.rollouts.list(self.job.id, **filters), self.limit))
        by_group: dict[str, list[StoredRollout]] = {}
        for rollout in found:
            is_graded = rollout.end is not None and rollout.end not in NOT_GRADED
            if is_graded and self._is_same(rollout):
                by_group.setdefault(rollout.group_id, []).append(rollout)
        last = found[-1].group_id if len(found) == self.limit else None
        for group_id, members in by_group.items():
            yield members, group_id == last

    def _is_same(self, rollout: StoredRollout) -> bool:
        """Of the job's first environment under its configuration: a package is not graded by another's."""
        first, place = self._environment(), self._places().get(rollout.group_id, 0)
        use = self._uses(rollout.purpose)[place]
        names = {str(one.get("ref", "")).partition("@")[0] for one in (first, use)}
        return len(names) == 1 and (use.get("config") or {}) == self.config

    def _uses(self, purpose: str) -> Sequence[Mapping[str, Any]]:
        """Environments that groups of a purpose have."""
        own = self.job.spec.get("environments") or [{}]
        evaluation = self.job.spec.get("evaluation") or {}
        return (evaluation.get("environments") or own) if purpose == "evaluation" else own

    def _places(self) -> Mapping[str, int]:
        """Place of the environment of each group; read once, and only where there are several."""
        if len(self._uses("evaluation")) + len(self._uses("train")) <= 2:
            return {}
        if not self.places:
            self.places.update({g.id: g.environment for g in self.client.groups.list(self.job.id)})
        return self.places

    def _environment(self) -> Mapping[str, Any]:
        environments = self.job.spec.get("environments") or [{}]
        first: Mapping[str, Any] = environments[0]
        return first


async def rescore(stage: Stage, source: Source) -> Rescore:
    """Grade every stored rollout again. Raises RescoreStopped."""
    result = Rescore()
    tasks: dict[str, dict[str, Task]] = {}
    kinds = {spec.kind for spec in stage.process.info.components}
    for members, is_cut in source.groups():
        split = source.split(members[0].purpose, members[0].group_id)
        if split not in tasks:
            tasks[split] = {task.id: task for task in await stage.process.load(split)}
        result.rollouts += len(members)
        pairs = list(_readable(source, members, tasks[split], result))
        if not pairs:
            continue
        if "group_reward" in kinds and (is_cut or len(pairs) < len(members)):
            message = f"only {len(pairs)} members are graded together"
            finding = RescoreFinding("group_incomplete", members[0].group_id, message)
            result.findings.append(finding)
        try:
            grades = await grade_group(stage, [rollout for _, rollout in pairs], 0)
        except EnvironmentFault as fault:
            raise RescoreStopped(str(fault)) from fault
        result.graded += len(pairs)
        result.artefacts.update(*(rollout.artefacts for _, rollout in pairs))
        for (stored, _), grade in zip(pairs, grades, strict=True):
            result.values += _compared(stored, grade)
    result.findings += _missing_artefacts(stage, result)
    return result


def _readable(
    source: Source, members: Sequence[StoredRollout], tasks: Mapping[str, Task], result: Rescore
) -> Iterator[tuple[StoredRollout, Rollout]]:
    for stored in members:
        task = tasks.get(stored.task_id)
        if task is None:
            message = f"the package has no task {stored.task_id}"
            result.findings.append(RescoreFinding("task_unknown", stored.id, message))
            continue
        try:
            yield stored, _rollout(source.client, stored, task)
        except NotFound as error:
            result.findings.append(RescoreFinding("no_trajectory", stored.id, error.detail))
        except (ApiError, BadRecord, ValueError) as error:
            result.findings.append(RescoreFinding("unreadable", stored.id, str(error)))


def _rollout(client: Client, stored: StoredRollout, task: Task) -> Rollout:
    kept = client.rollouts.trajectory(stored.id)
    artefacts = dict(kept.artefacts)
    state = artefacts.pop(STATE_ARTEFACT, None)
    return Rollout(
        id=stored.id,
        index=stored.index,
        task=task,
        messages=messages_from_json(kept.messages),
        end=kept.end,
        turns=len(kept.turns),
        state=None if state is None else json.loads(state),
        artefacts=artefacts,
    )


def _compared(stored: StoredRollout, grade: RolloutGrade) -> list[Change]:
    rewards = (stored.components or {}).get("rewards") or {}
    old: dict[str, Value | None] = {
        name: value_from_json(_whole(value)) for name, value in rewards.items()
    }
    old_total: Value | None = stored.reward
    if stored.unscorable_reason is not None:
        old_total = Unscorable(stored.unscorable_reason)
    names = [*grade.components, *(name for name in old if name not in grade.components)]
    changes = [Change(stored.id, one, old.get(one), grade.components.get(one)) for one in names]
    return [*changes, Change(stored.id, TOTAL, old_total, grade.total)]


def _whole(value: Any) -> Any:
    """A stored unscorable component may come without its detail."""
    return {"detail": "", **value} if isinstance(value, dict) else value


def _missing_artefacts(stage: Stage, result: Rescore) -> Iterator[RescoreFinding]:
    """Artefacts that the package lists and no rollout has: the job's version did not list them, or
    no agent made them. Rewards cannot see them.
    """
    for path in stage.manifest.artefacts if result.graded else ():
        if path not in result.artefacts:
            message = f"no rollout of the job has {path}; rewards that read it see nothing"
            yield RescoreFinding("artefact_not_stored", path, message)


def summaries(values: Sequence[Change]) -> list[Summary]:
    """Old against new by component, the total last."""
    by_name: dict[str, list[Change]] = {}
    for value in values:
        by_name.setdefault(value.component, []).append(value)
    if TOTAL in by_name:
        by_name[TOTAL] = by_name.pop(TOTAL)
    return [
        Summary(
            component=name,
            old_mean=_mean([one.old for one in found]),
            new_mean=_mean([one.new for one in found]),
            old_unscorable=sum(isinstance(one.old, Unscorable) for one in found),
            new_unscorable=sum(isinstance(one.new, Unscorable) for one in found),
            changed=sum(not one.is_same for one in found),
            rollouts=len(found),
        )
        for name, found in by_name.items()
    ]


def _mean(values: Sequence[Value | None]) -> float | None:
    numbers = [value for value in values if isinstance(value, float)]
    return math.fsum(numbers) / len(numbers) if numbers else None
