"""Drives a coordinator through a shape and times each event in processor time of this thread."""

import gc
import sys
import time
from array import array
from collections import deque
from dataclasses import asdict, dataclass, field
from types import FunctionType, ModuleType
from typing import Final

from benchmarks.step.shapes import ENGINES, GROUP_SIZE, Shape
from benchmarks.step.world import Hosts
from scheduler.core.coordinator import Coordinator

BEGUN_SHARE: Final = 0.99
"""Of the rollouts that must have been placed once before measuring begins."""

RAMP_EVENTS_MAX: Final = 3_000_000
"""Events until then; reaching it means that the shape never fills."""

FILLING_EVENTS: Final = 10_000
"""Events between two looks at how full it is."""

SETTLING_EVENTS: Final = 600_000
"""Events until members that had lived long have ended and groups complete one after the other."""

QUEUED_JOBS: Final = 8
"""Jobs submitted while it is measured; they find the pool taken."""


@dataclass(slots=True)
class Times:
    """Nanoseconds of single events."""

    taken: "array[int]" = field(default_factory=lambda: array("q"))

    def quantile_us(self, share: float) -> float:
        """A quantile in microseconds."""
        ordered = sorted(self.taken)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1e3


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """One type of event."""

    count: int
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float
    ramp_max_us: float
    """The worst while the state was filled: starts of jobs and hosts happen there."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one shape."""

    shape: str
    live_rollouts: int
    engines: int
    events: int
    events_per_s: float
    p50_us: float
    p99_us: float
    max_us: float
    bytes_per_rollout: float
    types: dict[str, TypeFigures]

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


class Bench:
    """One coordinator and its hosts; invariants are not checked, as in production."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        self.hosts = Hosts(shape, seed)
        self.core = Coordinator(shape.pool(), checking=False)
        self.ramp: dict[str, Times] = {}
        self.steady: dict[str, Times] = {}

    def fill(self) -> None:
        """Fold events until the rollouts live."""
        wanted = BEGUN_SHARE * self.shape.jobs * self.shape.groups_open * GROUP_SIZE
        for _ in range(RAMP_EVENTS_MAX // FILLING_EVENTS):
            self.fold(FILLING_EVENTS, self.ramp)
            if self.hosts.begun >= wanted:
                self.hosts.is_young = False
                self.fold(SETTLING_EVENTS, self.ramp)
                return
        raise RuntimeError(f"{self.hosts.begun} of {wanted:.0f} rollouts were placed")

    def live(self) -> int:
        """Rollouts on engines."""
        return sum(len(runs) for name, runs in self.hosts.placed.items() if "engine" in name)

    def fold(self, events: int, into: dict[str, Times]) -> None:
        """Accept and step this many events, each timed.

        Without the collector of cycles: the core makes none, and the survivors that it would walk
        through in the middle of an event are the modelled hosts'.
        """
        gc.disable()
        try:
            self._fold(events, into)
        finally:
            gc.enable()

    def _fold(self, events: int, into: dict[str, Times]) -> None:
        hosts, core, clock = self.hosts, self.core, time.thread_time_ns
        for _ in range(events):
            event = hosts.next_event()
            now = hosts.now
            begun = clock()
            commands = [] if core.accept(event) is not None else core.step(now, event)
            taken = clock() - begun
            name = type(event).__name__
            times = into.get(name)
            if times is None:
                times = into[name] = Times()
            times.taken.append(taken)
            hosts.obey(commands)

    def measure(self, events: int) -> Figures:
        """Fold this many events in the steady state, with losses of hosts and new jobs among them.

        Called again it measures the next window.
        """
        if not self.steady:
            self.hosts.break_later()
        self.steady = {}
        for number in range(QUEUED_JOBS):
            self.hosts.submit_later(5.0 * number)
        self.fold(events, self.steady)
        return self._figures()

    def _figures(self) -> Figures:
        every = Times()
        for times in self.steady.values():
            every.taken.extend(times.taken)
        live = self.live()
        return Figures(
            shape=self.shape.name,
            live_rollouts=live,
            engines=ENGINES,
            events=len(every.taken),
            events_per_s=len(every.taken) / (sum(every.taken) / 1e9),
            p50_us=every.quantile_us(0.5),
            p99_us=every.quantile_us(0.99),
            max_us=every.quantile_us(1.0),
            bytes_per_rollout=bytes_held(self.core) / max(live, 1),
            types={name: self._type(name) for name in sorted(self.steady)},
        )

    def _type(self, name: str) -> TypeFigures:
        times, ramp = self.steady[name], self.ramp.get(name)
        return TypeFigures(
            count=len(times.taken),
            mean_us=sum(times.taken) / len(times.taken) / 1e3,
            p50_us=times.quantile_us(0.5),
            p99_us=times.quantile_us(0.99),
            max_us=times.quantile_us(1.0),
            ramp_max_us=0.0 if ramp is None else ramp.quantile_us(1.0),
        )


def bytes_held(root: object) -> int:
    """Bytes of all objects that can be reached from here, without code."""
    seen = {id(root)}
    waiting = deque([root])
    total = 0
    while waiting:
        one = waiting.popleft()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                waiting.append(other)
    return total
