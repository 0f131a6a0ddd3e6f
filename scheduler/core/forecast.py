"""When a waiting job will get its gang: from the measured pace of the jobs that run now.

A job's pace is the mean of its last steps, soft state that a new leader measures anew. What nobody
has measured is not guessed: the forecast is then None with the job that it depends on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.ids import JobId

STEPS_REMEMBERED: Final = 16
"""Commits that the mean is taken over: recent enough to follow growing turns, long enough to be calm."""

SHIFT_S: Final = 60.0
"""A forecast that moves by less is not shown anew, or every step of every job would be written."""

SHIFT_SHARE: Final = 0.1
"""Of the time until the start, for the same reason."""


@dataclass(slots=True)
class Pace:
    """How long the job's steps take."""

    commits: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    """Times of the last commits of this gang."""
    step_s: float | None = None
    """Mean of the last steps, kept over a pause."""

    def note_step(self, now: float) -> None:
        """A step was committed."""
        self.commits.append(now)
        steps = len(self.commits) - 1
        if steps and now > self.commits[0]:
            self.step_s = (now - self.commits[0]) / steps

    def stop(self) -> None:
        """The gang is given back: the time until the next commit is no step's."""
        self.commits.clear()

    def remaining_s(self, steps: int, now: float) -> float | None:
        """Seconds until this many more steps are committed; None while no step was measured."""
        if steps <= 0:
            return 0.0
        if self.step_s is None:
            return None
        since = min(now - self.commits[-1], self.step_s) if self.commits else 0.0
        return steps * self.step_s - since


@dataclass(frozen=True, slots=True)
class Start:
    """When a job will start, or why that is not known."""

    at: float | None = None
    reason: str | None = None

    def moved(self, former: "Start", now: float) -> bool:
        """Whether this says something else than the former forecast, as far as people care."""
        if self.at is None or former.at is None:
            return self != former
        margin = max(SHIFT_S, SHIFT_SHARE * max(former.at - now, 0.0))
        return abs(self.at - former.at) > margin


NO_START: Final = Start()
"""Of a job that does not wait."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds a gang, or will hold one, and when it is expected to give it back."""

    job_id: JobId
    ends_at: float | None


def starts(
    line: Sequence[tuple[JobId, float | None]],
    holders: Sequence[Holder],
    now: float,
    fits: Callable[[JobId, tuple[JobId, ...]], bool],
) -> dict[JobId, Start]:
    """Forecast of each waiting job, in the order in which they will be served.

    `line` holds each job with the seconds that it will run, None where unknown. `fits(job, holding)`
    says whether the job's gang is free while these jobs hold theirs; a job that fits nowhere must not
    be in the line.
    """
    held, clock = sorted(holders, key=_end_order), now
    found: dict[JobId, Start] = {}
    for job_id, runs_s in line:
        while held and not fits(job_id, tuple(one.job_id for one in held)):
            first = held[0]
            if first.ends_at is None:
                unknown = Start(None, f"no step of {first.job_id} has been measured yet")
                return found | {one: unknown for one, _ in line if one not in found}
            clock = max(clock, first.ends_at)
            del held[0]
        found[job_id] = Start(clock)
        ends_at = None if runs_s is None else clock + runs_s
        held = sorted([*held, Holder(job_id, ends_at)], key=_end_order)
    return found


def _end_order(holder: Holder) -> tuple[bool, float, JobId]:
    return holder.ends_at is None, holder.ends_at or 0.0, holder.job_id
