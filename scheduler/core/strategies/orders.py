"""Orders that are strategies of their own: `longest`, and the two measures of a predictor's worth.

- `longest`: the longest estimate first, with preemption by rank. Seer (arXiv 2511.14617) takes the
  longest finished member of a group as the estimate of all, and the cap while nothing has finished;
  Heddle (arXiv 2603.28101) does the same with a learned estimate. Both are for synchronous makespan.
  Left out: Seer's probes, its global pool of KV and grouped speculative decoding; Heddle's placement.
- `oracle`: `venus` with the true remaining work, which a simulator gives as `TurnFinished.remaining`.
- `random`: `venus` with an order that knows nothing. The draw is a fixed hash of (attempt, ordinal), so
  that the same job draws the same order in every process.
"""

from collections.abc import Callable
from typing import Final

from domain.ids import AttemptId
from domain.plan import Scheduling
from kv.ranks import VALUE_SPAN
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.rules import Rules, least_loaded
from scheduler.core.state import Pass
from scheduler.core.strategies.venus import Venus

LENGTH_MAX: Final = 1_000_000
"""Estimates are cut here, so that they and an ordinal share one value of a rank."""

_MASK: Final = (1 << 64) - 1
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3


class Longest(Rules):
    """Longest estimate first over first finished, first trained."""

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._cap = min(int(self.knob("length_cap")), LENGTH_MAX)

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """Descending estimate, then by creation."""
        finished = [r.sampled_tokens for r in group.rollouts if not r.is_open and not r.is_lost]
        estimate = min(group_estimate(finished, self._cap), LENGTH_MAX)
        return (LENGTH_MAX - estimate) * LENGTH_MAX + group.ordinal % LENGTH_MAX

    def choose_engine(
        self,
        run: Pass,
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """Each rollout by itself, by load."""
        return least_loaded(fitting)


class Oracle(Venus):
    """Everything of `venus`; only what it is told of remaining work differs."""


class Random(Venus):
    """Everything of `venus` but the order."""

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """By the draw."""
        return draw(job.attempt_id, group.ordinal)

    def complete_key(self, job: JobRecord, group: GroupRecord) -> tuple[float, int]:
        """By the draw."""
        return (float(draw(job.attempt_id, group.ordinal)), group.ordinal)

    def critical_key(self, job: JobRecord) -> Callable[[GroupRecord], tuple[float, int]] | None:
        """By the draw."""
        return lambda group: self.complete_key(job, group)


def group_estimate(finished: list[int], cap: int) -> int:
    """Seer's estimate of a group's length: its longest finished member, the cap while there is none."""
    return max(finished, default=cap)


def draw(attempt: AttemptId, ordinal: int) -> int:
    """A number below `VALUE_SPAN` that depends on nothing but these two (FNV-1a, then a mix)."""
    mixed = _FNV_OFFSET
    for byte in f"{attempt}:{ordinal}".encode():
        mixed = ((mixed ^ byte) * _FNV_PRIME) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    return (mixed ^ (mixed >> 33)) % VALUE_SPAN
