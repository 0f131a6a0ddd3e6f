"""Whole engines that full-weight jobs take in turns: how long a slice is, who is next, when it ends.

Another job's slice costs an engine its weights: the running turns of the former job drain, then the new
weights are loaded. So slices are long against that cost, in the ratio of the weights, and end between
turns. A round is one slice of every job that waits or runs; two bounds give its length: what switching
may cost, and that even the lightest slice holds some whole turns.

Deficit round robin (Shreedhar, Varghese 1996): always in the same order, and what a slice was too long
or too short by is carried to the job's next one. The same order keeps each job's slices one round
apart; taking whoever got least instead gives the same sums, but lets them drift by most of a round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from domain.ids import JobId

SWITCH_SHARE: Final = 0.05
"""Part of a round that may go into switching: small beside what a share may be off by."""

TURNS_PER_SLICE: Final = 2.0
"""Longest turns that the lightest slice lasts at least: a slice that ends one turn late is then at most
half too long, and the account takes that back from the next."""

ROUND_MAX_S: Final = 3600.0
"""A round beyond it keeps people waiting for hours; switching then costs more than its usual part."""


@dataclass(frozen=True, slots=True)
class Switch:
    """What it costs an engine to change the job that it generates for."""

    weight_bytes: float
    link_bytes_per_s: float
    """From where the next job's weights wait to the device: host memory, or the network."""
    fixed_s: float = 0.0
    """Pausing, probing, warming up."""
    drain_s: float = 0.0
    """Time in which the last turns of the former job end while no new one starts, as measured."""

    @property
    def swap_s(self) -> float:
        """The engine generates for nobody."""
        return self.weight_bytes / self.link_bytes_per_s + self.fixed_s

    @property
    def total_s(self) -> float:
        """Lost to a switch; of the drain half, as turns end evenly over it."""
        return self.swap_s + self.drain_s / 2


def slices(
    weights: Mapping[JobId, float], switch: Switch, longest_turn_s: float
) -> dict[JobId, float]:
    """Seconds of each job's slice in a round of all of them.

    Round >= jobs x switch / `SWITCH_SHARE`, lightest slice >= `TURNS_PER_SLICE` x longest turn, round <=
    `ROUND_MAX_S` unless the second bound needs more.
    """
    if not weights:
        return {}
    total, lightest = sum(weights.values()), min(weights.values())
    assert lightest > 0, weights
    by_cost = min(len(weights) * switch.total_s / SWITCH_SHARE, ROUND_MAX_S)
    by_turns = TURNS_PER_SLICE * longest_turn_s * total / lightest
    round_s = max(by_cost, by_turns)
    return {job: round_s * weights[job] / total for job in sorted(weights)}


@dataclass(slots=True)
class Slice:
    """The job that an engine generates for now."""

    job: JobId
    began: float
    length_s: float


@dataclass(slots=True)
class Rotation:
    """Slices of one whole engine, or of several that are switched together.

    The caller tells which jobs have turns (`wait`, `rest`), asks at every turn boundary whether the
    slice is over (`is_over`), lets the running turns end, and switches (`switch_to`). `now` never goes
    back.
    """

    switch: Switch
    longest_turn_s: float
    weights: dict[JobId, float] = field(default_factory=dict)
    current: Slice | None = None
    _waiting: dict[JobId, None] = field(default_factory=dict)
    _carried_s: dict[JobId, float] = field(default_factory=dict)

    def join(self, job: JobId, weight: float) -> None:
        """A job takes part from now on; `weight` is its tenant's, divided among the tenant's jobs."""
        assert weight > 0, weight
        self.weights[job] = weight

    def leave(self, job: JobId) -> None:
        """The job gave its gang back."""
        for known in (self.weights, self._waiting, self._carried_s):
            known.pop(job, None)
        if self.current is not None and self.current.job == job:
            self.current = None

    def wait(self, job: JobId) -> None:
        """The job has turns that could run."""
        self._waiting[job] = None

    def rest(self, job: JobId) -> None:
        """The job has nothing to run: its slice ends, and what it was owed is forgotten."""
        self._waiting.pop(job, None)
        self._carried_s[job] = min(self._carried_s.get(job, 0.0), 0.0)

    def waiting(self) -> list[JobId]:
        """Jobs with turns, by id."""
        return sorted(self._waiting)

    def next_job(self) -> JobId | None:
        """The waiting job whose slice comes after the present one; None when no other job waits."""
        present = None if self.current is None else self.current.job
        others = [job for job in self.waiting() if job != present]
        behind = [job for job in others if present is not None and job > present]
        return next(iter(behind or others), None)

    def is_over(self, now: float) -> bool:
        """Whether the present job starts no further turn. Nobody is switched out for an idle engine.

        A job that went on beyond its slice because nobody waited gives way at the next turn boundary.
        """
        if self.current is None:
            return True
        if self.next_job() is None:
            return False
        is_used = now - self.current.began >= self.current.length_s
        return is_used or self.current.job not in self._waiting

    def switch_to(self, job: JobId, now: float) -> float:
        """The engine is `job`'s from now on; the seconds that it loads weights, part of the slice."""
        if self.current is not None:
            self._carry(self.current, now)
        taking = {one: self.weights[one] for one in sorted({*self._waiting, job})}
        planned = slices(taking, self.switch, self.longest_turn_s)[job]
        length = planned + self._carried_s.pop(job, 0.0)
        # Loading the weights for less than a turn helps nobody; the rest is carried once more.
        least = self.switch.swap_s + self.longest_turn_s
        if length < least:
            self._carried_s[job] = length - least
        self.current = Slice(job, now, max(length, least))
        return self.switch.swap_s

    def _carry(self, former: Slice, now: float) -> None:
        """A turn and a drain too long are taken back; what was lent beyond the slice is not."""
        missed = former.length_s - (now - former.began)
        most = self.longest_turn_s + self.switch.drain_s
        carried = self._carried_s.get(former.job, 0.0) + max(missed, -most)
        is_owed = former.job in self._waiting
        self._carried_s[former.job] = carried if is_owed else min(carried, 0.0)
