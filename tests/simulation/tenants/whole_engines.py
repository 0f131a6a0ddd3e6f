"""Full-weight jobs of several tenants on whole engines, taken in turns by `scheduler.core.time_slices`.

One engine (or several switched together). A turn is drawn; at each turn boundary the rotation says
whether the slice is over; a switch costs the modelled swap. Turns follow one another: what runs beside
them in other slots ends with them, at the latest one longest turn later, which the drain stands for.
"""

from dataclasses import dataclass, field
from random import Random

from domain.ids import JobId
from scheduler.core.time_slices import Rotation, Switch


@dataclass(frozen=True, slots=True)
class Span:
    """The engine was one job's; `turns_s` of it went into turns, the rest into loading and draining."""

    job: JobId
    began: float
    ended: float
    turns_s: float


@dataclass(slots=True)
class WholeEngines:
    """An engine whose weights are swapped between jobs."""

    weights: dict[JobId, float]
    switch: Switch
    chance: Random
    longest_turn_s: float = 20.0
    away: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    """Spans in which a job has no turns."""
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)
    idle_s: float = 0.0
    """Seconds in which the engine was nobody's although a job waited."""
    rotation: Rotation = field(init=False)

    def __post_init__(self) -> None:
        self.rotation = Rotation(self.switch, self.longest_turn_s)
        for job, weight in self.weights.items():
            self.rotation.join(job, weight)
            self.rotation.wait(job)

    def run(self, until: float) -> None:
        """Let time pass, slice by slice."""
        while self.now < until:
            self._look()
            job = self.rotation.next_job()
            if job is None:
                assert not self.rotation.waiting() or self.rotation.current is not None
                self.now += 1.0
                continue
            self._run_slice(job, until)

    def seconds(self, begin: float, end: float) -> dict[JobId, float]:
        """Engine-seconds of each job in a window, loading included."""
        found = dict.fromkeys(self.weights, 0.0)
        for span in self.spans:
            found[span.job] += max(min(span.ended, end) - max(span.began, begin), 0.0)
        return found

    def _run_slice(self, job: JobId, until: float) -> None:
        began, turns_s = self.now, 0.0
        self.now += self.rotation.switch_to(job, self.now)
        self._look()
        while not self.rotation.is_over(self.now) and self.now < until:
            turn = min(self.chance.lognormvariate(1.0, 0.8), self.longest_turn_s)
            self.now, turns_s = self.now + turn, turns_s + turn
            self._look()
        self.now += self.switch.drain_s / 2
        self.spans.append(Span(job, began, self.now, turns_s))

    def _look(self) -> None:
        """Tell the rotation who has turns now."""
        for job in self.weights:
            is_away = any(left <= self.now < back for left, back in self.away.get(job, []))
            if is_away:
                self.rotation.rest(job)
            else:
                self.rotation.wait(job)
