"""The same cells in virtual time: the same groups, the same core, costs measured on this machine's engine.

Costs come from runs at low pressure with the same seed. Each strategy's come from its own such run: engine
and trainer share the machine's cores, so one that trains while it generates has dearer steps than one that
does not. Groups are those of `venus` by ordinal, nothing is drawn; a task that a strategy does again is as
it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.e2e.costs import Costs, Scale, Work, scale_of
from benchmarks.e2e.records import Kept, Run
from domain.engine import PAGE_TOKENS
from domain.ids import task_ordinal
from simulation.fitting import log_spread
from simulation.plan import CannotModel, Course, Draw, PlannedGroup, PlanPool, PlanTooLarge
from simulation.rates import EngineRates, Rates
from simulation.recorded import RecordedJob, sync_s_of
from simulation.recorded_engine import engine_rows
from simulation.recorded_trainer import fit_trainer
from simulation.recorded_waits import crowds_of, grade_crowds_of, waits_of
from simulation.rehearsal import rehearse
from workers.chores.plan_spec import job_plan, read_planned

SANDBOXES: Final = 256
"""Of the stack's one node, by default."""


@dataclass(frozen=True, slots=True)
class Physics:
    """What was measured of the machine, in one run."""

    engine: EngineRates
    spread: float
    """Standard deviation of the logarithm by which single turns miss the fit."""
    turns: int
    scale: Scale
    rates: Rates


@dataclass(frozen=True, slots=True)
class ExactGroups:
    """Groups by ordinal as they were recorded."""

    groups: Mapping[int, PlannedGroup]

    def group(self, ordinal: int) -> PlannedGroup:
        """The group with this ordinal, or the one that it repeats. Raises CannotModel."""
        found = self.groups.get(task_ordinal(ordinal))
        if found is None:
            raise CannotModel(f"group {ordinal} is not among the recorded ones")
        return found


def work_of(run: Run) -> Work:
    """What the engines of a run counted."""
    return Work(
        run.engaged_s,
        run.prefill_s,
        run.engine_steps,
        run.kv_read_tokens,
        run.prefilled_tokens,
        run.attended_tokens,
    )


def measured(job: RecordedJob, costs: Costs, work: Work) -> Physics:
    """The engine's own costs at the size that it says they had on the whole stack.

    Turns alone do not tell them apart: where others take the cores, long contexts and long waits go
    together, and least squares give all to them. Raises CannotModel where the engine counted nothing.
    """
    rows = [row for of_group in engine_rows(job.groups).values() for row in of_group]
    scale = scale_of(costs, work)
    columns = scale.of(costs).columns
    spread = log_spread(rows, columns)
    step_s, kv_token_s, prefill_token_s, attended_token_s = columns
    engine = EngineRates(
        step_s,
        kv_token_s,
        prefill_token_s,
        job.slots,
        job.kv_tokens,
        attended_token_s,
        reads_prefix_once=False,
    )
    trainer = fit_trainer(job.steps, streams=job.streams)
    crowds = crowds_of(job, waits_of(job), grade_crowds_of(job))
    return Physics(engine, spread, len(rows), scale, Rates(engine, trainer, sync_s_of(job), crowds))


def exact_groups(job: RecordedJob) -> ExactGroups:
    """All groups of a recorded job."""
    waits, crowds = waits_of(job), grade_crowds_of(job)
    return ExactGroups(
        {
            group.ordinal: PlannedGroup(
                members=tuple(one.trajectory() for one in group.rollouts),
                waits=tuple(waits[group.ordinal, place] for place in range(len(group.rollouts))),
                grade_s=max(group.graded_s - group.closed_s, 0.0),
                grade_crowd=crowds[group.ordinal],
            )
            for group in job.groups
        }
    )


def simulated_step_s(run: Run, kept: Kept, reference: Kept, own: tuple[Run, Kept]) -> float | None:
    """Seconds of a step of a run in virtual time; None where it cannot be modelled.

    `kept` says what was asked (the normalised spec), `reference` what the work is, `own` (the same
    strategy at low pressure) what the machine's costs are.
    """
    cheap, cheap_kept = own
    if cheap_kept.costs is None:
        return None
    try:
        known = measured(cheap_kept.job, cheap_kept.costs, work_of(cheap))
    except CannotModel:
        return None
    rates = replace(
        known.rates,
        engine=replace(known.engine, kv_tokens=run.kv_pages * PAGE_TOKENS, slots=run.slots),
    )
    plan = job_plan(read_planned(kept.spec), run.engines, 0, run.steps)
    groups = exact_groups(reference.job)
    if any(len(one.members) < plan.group_size for one in groups.groups.values()):
        return (
            None  # A rollout of the reference was lost: its groups are not the ones of the others.
        )
    draw = Draw(rates, groups)
    try:
        course = rehearse(plan, PlanPool(run.engines, SANDBOXES), draw)
    except (CannotModel, PlanTooLarge):
        return None
    return course_step_s(course)


def course_step_s(course: Course) -> float:
    """By the same rule as a real run's."""
    return (course.commits_s[-1] - course.began_s) / len(course.commits_s)
