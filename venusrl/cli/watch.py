"""A job as it goes: one reader of the public API, two ways to show it.

`follow` polls until the job has ended, or is paused and waits for a person. A terminal gets a live
panel; everything else gets a line whenever something changed.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import Field

from venusrl.cli.curve import sparkline
from venusrl.cli.output import is_terminal
from venusrl.models._base import Answer

if TYPE_CHECKING:
    from rich.console import Group

    from venusrl.client import Client
    from venusrl.models.jobs import Evaluation, Job

POLL_S: Final = 1.0
"""The scheduler renews a job's progress about once a second."""

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})

REWARD: Final = "reward_mean"
"""The trainer's series of the mean reward of a step's rollouts."""

BAR_WIDTH: Final = 30
SPARK_WIDTH: Final = 60


class GroupCounts(Answer):
    """Groups of the batch that fills and of those ahead of it."""

    open: int = 0
    complete: int = 0
    assigned: int = 0
    per_batch: int = 0


class RolloutCounts(Answer):
    """Rollouts by whether an engine has them."""

    running: int = 0
    waiting: int = 0


class EvaluationProgress(Answer):
    """An evaluation that runs."""

    step: int
    opened: int = 0
    unfinished: int = 0
    tasks: int = 0


class Progress(Answer):
    """What `/progress` says; a job that nobody has taken up yet has little more than its state."""

    state: str
    step: int = 0
    max_steps: int = 0
    queue_position: int | None = None
    reason: str | None = None
    predicted_start: datetime | None = None
    groups: GroupCounts = GroupCounts()
    rollouts: RolloutCounts = RolloutCounts()
    staleness: dict[str, int] = Field(default_factory=dict)
    tokens_per_s: float = 0.0
    evaluation: EvaluationProgress | None = None

    @property
    def queue(self) -> str:
        """Where it waits and why, or that it does not."""
        if self.queue_position is not None:
            start = self.predicted_start
            starts = "" if start is None else f", starts about {start:%Y-%m-%d %H:%M} UTC"
            reason = f", {self.reason}" if self.reason else ""
            return f"position {self.queue_position}{reason}{starts}"
        return self.reason or "not queued"

    @property
    def stale(self) -> str:
        """Assigned groups by staleness: `0:5 1:3`."""
        return " ".join(f"{lag}:{count}" for lag, count in sorted(self.staleness.items())) or "-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading."""

    job: "Job"
    progress: Progress
    curve: tuple[float, ...]
    """Mean reward of each committed step of the current attempt."""
    evaluated: "Evaluation | None" = None
    """The last finished evaluation."""

    @property
    def is_over(self) -> bool:
        """Ended, or paused with nobody about to resume it."""
        job = self.job
        is_settled = job.observed_generation >= job.generation
        return job.state in ENDED or (job.state == "paused" and is_settled)


@dataclass(slots=True)
class Reader:
    """Reads snapshots; asks for new points only."""

    client: "Client"
    job_id: str
    _attempt: str = ""
    _points: dict[int, float] = field(default_factory=dict)
    _evaluating: tuple[object, ...] = ()
    _evaluated: "Evaluation | None" = None

    def read(self) -> Snapshot:
        """The job now. Its own record is read first: once it has ended, all points are there."""
        jobs = self.client.jobs
        job = jobs.get(self.job_id)
        if job.attempt_id != self._attempt:
            self._attempt, self._points = job.attempt_id, {}
        progress = Progress.model_validate(jobs.progress(self.job_id))
        last = max(self._points, default=-1)
        for point in jobs.metrics(self.job_id, names=(REWARD,), after_step=last):
            if point.attempt_id == job.attempt_id:
                self._points[point.step] = point.value
        curve = tuple(self._points[step] for step in sorted(self._points))
        self._look_at_evaluations(job, progress)
        return Snapshot(job, progress, curve, self._evaluated)

    def _look_at_evaluations(self, job: "Job", progress: Progress) -> None:
        """Read them when one has begun or ended."""
        running = None if progress.evaluation is None else progress.evaluation.step
        now = (job.attempt_id, job.state, running)
        if now == self._evaluating:
            return
        self._evaluating = now
        found = self.client.jobs.evaluations(self.job_id)
        own = [one for one in found if one.attempt_id == job.attempt_id]
        self._evaluated = own[-1] if own else None


class Screen(Protocol):
    """Where snapshots are shown."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest one."""


def follow(
    client: "Client",
    job_id: str,
    screen: Screen,
    *,
    interval_s: float = POLL_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Show the job until it is over; its last snapshot."""
    reader = Reader(client, job_id)
    while True:
        snapshot = reader.read()
        screen.show(snapshot)
        if snapshot.is_over:
            return snapshot
        sleep(interval_s)


@contextmanager
def screen_for_output() -> Iterator[Screen]:
    """A live panel for a person, lines for a log."""
    if not is_terminal():
        yield Lines()
        return
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        yield Panel(lambda drawn: live.update(drawn, refresh=True))


def write_now(text: str) -> None:
    """A line with the time of day on standard output."""
    sys.stdout.write(f"{datetime.now().astimezone():%H:%M:%S} {text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Lines:
    """A line whenever state, step or the running evaluation changed."""

    write: Callable[[str], None] = write_now
    _last: tuple[object, ...] = ()

    def show(self, snapshot: Snapshot) -> None:
        """Write a line if it says something new."""
        progress = snapshot.progress
        evaluation = progress.evaluation
        is_evaluating = evaluation is not None and evaluation.step
        key = (snapshot.job.state, progress.step, is_evaluating, progress.reason)
        if key == self._last:
            return
        self._last = key
        self.write(line_of(snapshot))


def line_of(snapshot: Snapshot) -> str:
    """State, step, reward, speed, groups, staleness, queue in one line."""
    return "  ".join(f"{name} {value}" for name, value in fields_of(snapshot).items())


def fields_of(snapshot: Snapshot) -> Mapping[str, str]:
    """What both screens show, in order."""
    progress, groups = snapshot.progress, snapshot.progress.groups
    reward = f"{snapshot.curve[-1]:.3f}" if snapshot.curve else "-"
    fields = {
        "state": snapshot.job.state,
        "step": f"{progress.step}/{progress.max_steps}",
        "reward": reward,
        "tokens/s": f"{progress.tokens_per_s:.0f}",
        "groups": f"{groups.open} open {groups.complete} complete "
        f"{groups.assigned}/{groups.per_batch} assigned",
        "staleness": progress.stale,
        "rollouts": f"{progress.rollouts.running} running {progress.rollouts.waiting} waiting",
        "queue": progress.queue,
    }
    evaluation = progress.evaluation
    if evaluation is not None and snapshot.job.state not in ENDED:
        done = max(0, evaluation.opened - evaluation.unfinished)
        fields["evaluation"] = f"of step {evaluation.step}: {done}/{evaluation.tasks}"
    if snapshot.evaluated is not None:
        fields["evaluated"] = _evaluated(snapshot.evaluated)
    return fields


def _evaluated(one: "Evaluation") -> str:
    """Score of the last evaluation, and that of each environment."""
    parts = [("", one.score), *((f"{part.name} ", part.score) for part in one.environments)]
    scores = (f"{name}{'-' if score is None else f'{score:.3f}'}" for name, score in parts)
    return f"step {one.step}: {'  '.join(scores)}"


@dataclass(slots=True)
class Panel:
    """A panel that is drawn anew in place."""

    draw: "Callable[[Group], None]"

    def show(self, snapshot: Snapshot) -> None:
        """Draw the newest snapshot."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        job, progress = snapshot.job, snapshot.progress
        share = progress.step / progress.max_steps if progress.max_steps else 0.0
        filled = round(share * BAR_WIDTH)
        table = Table.grid(padding=(0, 2))
        for name, value in fields_of(snapshot).items():
            table.add_row(Text(name, style="dim"), Text(value))
        table.add_row(Text("curve", style="dim"), Text(sparkline(snapshot.curve, SPARK_WIDTH)))
        head = Text.assemble(
            (job.name, "bold"), f"  {job.id}  attempt {job.attempt}  ",
            ("█" * filled + "░" * (BAR_WIDTH - filled), "green"), f" {share:.0%}",
        )  # fmt: skip
        self.draw(Group(head, table))
