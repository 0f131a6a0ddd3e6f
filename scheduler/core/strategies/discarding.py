"""What strategies share that bound staleness by discarding: take what finished first, drop what is old.

They start groups without regard to whether all can still be trained (`paces` is False). At each step
groups whose lag exceeds the strategy's bound, or the job's where that is smaller, are dropped and their
tasks queued again (`scheduler.core.requeue`). Upstream an unfinished group that is too old already runs
on until it is refused; here it ends at once, which is kinder to the baseline and costs no result.
"""

from typing import TYPE_CHECKING

from domain.ids import task_ordinal
from domain.schedule import Numbers
from scheduler.core.records import GroupPhase, GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.requeue import drop_and_queue_again, lag
from scheduler.core.rules import Rules, least_loaded

if TYPE_CHECKING:
    from scheduler.core.state import Pass, State


class Discarding(Rules):
    """First finished, first trained; too old, dropped and done again."""

    paces = False

    def lag_max(self, job: JobRecord) -> int:
        """Versions that a trained group may lag; the job's bound holds whatever a strategy allows."""
        return job.plan.max_staleness

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """By the order of the tasks: a repeat stands where its task first stood."""
        return task_ordinal(group.ordinal)

    def choose_engine(
        self,
        run: "Pass",
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """Each rollout by itself, by load; a group that grows on one engine would fill it alone."""
        return least_loaded(fitting)

    def on_step(self, run: "Pass", job: JobRecord, taken: list[GroupRecord]) -> None:
        """Drop what the next step may not take, and queue its tasks again."""
        bound = min(self.lag_max(job), job.plan.max_staleness)
        for group in job.training_groups():
            if group.phase is not GroupPhase.ASSIGNED and lag(job, group) > bound:
                drop_and_queue_again(run, job, group, f"lags more than {bound} versions")


def serves_newest(state: "State", job: JobRecord) -> bool:
    """Whether all engines serve the newest policy: upstream a step's groups begin after the weight update.

    Were one enough, all groups of a step would be placed on the engine that is done first.
    """
    engines = state.engines_of(job)
    return bool(engines) and all(engine.version == job.committed for engine in engines)


def behind(state: "State", job: JobRecord) -> Numbers:
    """The numbers of a wait for engines that do not serve the newest policy yet."""
    oldest = min((engine.version for engine in state.engines_of(job)), default=-1)
    return (("served", oldest), ("committed", job.committed))
