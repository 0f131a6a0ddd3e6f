"""Where every engine-, trainer- and sandbox-second of an attempt goes: one bucket of a closed list.

    a host:  | waiting | loading | ready .................................| waiting | ready ...
             '-- starting or infrastructure --'  busy shares, the rest idle

Intervals of a host tile the time for which it was wanted, so that the buckets of an attempt sum to
its wall time by construction. Busy seconds are shares that add up to the time in which the host was
really busy; the rest of its ready time is idle. Pure: facts in, lines out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Resource(StrEnum):
    """What is counted in seconds."""

    ENGINE = "engine"
    TRAINER = "trainer"
    SANDBOX = "sandbox"


PRICE_USD_PER_HOUR: Final[Mapping[Resource, float]] = {
    Resource.ENGINE: 2.50,
    Resource.TRAINER: 2.50,
    Resource.SANDBOX: 0.05,
}
"""List price of one host, or of one sandbox, for an hour: what a plan's cost is computed from. An
engine or a trainer host is one accelerator on demand, a sandbox one virtual CPU with its memory."""


class Bucket(StrEnum):
    """What a second was spent on. Closed: what is not measured yet stays in it at 0."""

    TRAINED = "trained"
    EVALUATION = "evaluation"
    ZERO_VARIANCE = "zero_variance"
    STALE = "stale"
    TRUNCATED = "truncated"
    UNSCORABLE = "unscorable"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    PENDING = "pending"
    INFRASTRUCTURE = "infrastructure"
    RECOMPUTED_KV = "recomputed_kv"
    STARTING = "starting"
    CHECKPOINTING = "checkpointing"
    IDLE_BY_TOOL = "idle_by_tool"
    IDLE_BY_SCHEDULER = "idle_by_scheduler"


class Opened(StrEnum):
    """Why an interval of a host began."""

    DECLARED = "declared"
    """The host was wanted: an attempt began, or a paused one was resumed."""
    LOST = "lost"
    """The process before it was lost, evicted or ended by a fault."""


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Seconds of one interval: in all, and how many of them the host was ready to work."""

    opened: Opened
    seconds: float
    ready_s: float
    is_lost: bool = False
    """It ended by a loss."""

    def __post_init__(self) -> None:
        """Refuse a span that is more ready than long."""
        assert 0.0 <= self.ready_s <= self.seconds


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of one bucket and the number of rollouts that they were spent on."""

    seconds: float
    rollouts: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a bill."""

    resource: Resource
    bucket: Bucket
    seconds: float
    rollouts: int = 0


@dataclass(frozen=True, slots=True)
class HostUse:
    """How the hosts of one kind were used: busy shares by bucket, and what stood still for tools."""

    busy: Mapping[Bucket, Share] = field(default_factory=dict)
    tool_wait_s: float = 0.0


def host_lines(resource: Resource, spans: Sequence[HostSpan], use: HostUse) -> list[Line]:
    """Lines of all hosts of one kind; their seconds sum to the seconds of the spans.

    Shares beyond the ready time (readings of two clocks) are scaled down to it, never billed on top.
    """
    unready = dict.fromkeys((Bucket.STARTING, Bucket.INFRASTRUCTURE), 0.0)
    for span in spans:
        unready[_unready_bucket(span)] += span.seconds - span.ready_s
    ready_s = sum(span.ready_s for span in spans)
    asked_s = sum(share.seconds for share in use.busy.values())
    scale = min(1.0, ready_s / asked_s) if asked_s > 0 else 1.0
    shares = {b: Share(s.seconds * scale, s.rollouts) for b, s in use.busy.items()}
    idle_s = max(0.0, ready_s - sum(share.seconds for share in shares.values()))
    tool_s = min(use.tool_wait_s, idle_s)
    rest = {
        **unready,
        Bucket.IDLE_BY_TOOL: tool_s,
        Bucket.IDLE_BY_SCHEDULER: idle_s - tool_s,
    }
    for bucket, seconds in rest.items():
        known = shares.get(bucket, Share(0.0))
        shares[bucket] = Share(known.seconds + seconds, known.rollouts)
    return lines_of(resource, shares)


def lines_of(resource: Resource, shares: Mapping[Bucket, Share]) -> list[Line]:
    """One line for each bucket that has seconds or rollouts, in the order of the closed list."""
    return [
        Line(resource, bucket, shares[bucket].seconds, shares[bucket].rollouts)
        for bucket in Bucket
        if bucket in shares and (shares[bucket].seconds > 0 or shares[bucket].rollouts)
    ]


def merged(lines: Sequence[Line]) -> list[Line]:
    """Lines of several attempts as one bill: each resource and bucket of the closed list once."""
    sums = {(resource, bucket): Share(0.0) for resource in Resource for bucket in Bucket}
    for line in lines:
        known = sums[line.resource, line.bucket]
        sums[line.resource, line.bucket] = Share(
            known.seconds + line.seconds, known.rollouts + line.rollouts
        )
    return [Line(*key, share.seconds, share.rollouts) for key, share in sums.items()]


def _unready_bucket(span: HostSpan) -> Bucket:
    """A first start is `starting`; a start after a loss, or one that was lost itself, is our fault."""
    was_lost_early = span.is_lost and span.ready_s == 0.0
    if span.opened is Opened.LOST or was_lost_early:
        return Bucket.INFRASTRUCTURE
    return Bucket.STARTING
