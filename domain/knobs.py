"""The numbers of each strategy that a job may set: `scheduling.knobs` of its spec.

Defaults are those that the named system publishes; a strategy's module in `scheduler.core.strategies`
names the source. They stand here, below the core and the gateway, because one reads them and the other
lists and checks them; a sweep that tunes a baseline walks the same table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from domain.plan import StrategyName


@dataclass(frozen=True, slots=True)
class Knob:
    """One number of a strategy, with what is sensible for it."""

    name: str
    default: float
    low: float
    high: float
    what: str
    is_whole: bool = False
    """Only whole numbers mean something; a switch is 0 or 1."""

    def accepts(self, value: float) -> bool:
        """Whether a job may set this value."""
        is_in_range = self.low <= value <= self.high
        return is_in_range and (not self.is_whole or value == int(value))


_POOL: Final = (
    Knob("pool_per_engine", 512.0, 1.0, 4096.0, "groups in flight for each engine", is_whole=True),
    Knob("poll_s", 1.0, 0.0, 60.0, "seconds between top-ups of the pool"),
)

_LAG: Final = Knob(
    "lag_max", 2.0, 0.0, 64.0, "versions that a trained group may lag", is_whole=True
)

_PROGRAMS: Final = (
    Knob("interval_s", 5.0, 0.5, 120.0, "seconds between checks of the capacity"),
    Knob("buffer_tokens", 100.0, 0.0, 8192.0, "tokens that a program is charged besides its own"),
    Knob("acting_weight", 1.0, 0.0, 1.0, "share of its tokens that a program in a tool is charged"),
    Knob("timeout_s", 1800.0, 1.0, 86_400.0, "seconds after which a paused program goes on anyway"),
)


def _programs(decays: float, counts_marks: float, shares_prefix: float) -> tuple[Knob, ...]:
    return (
        *_POOL,
        _LAG,
        *_PROGRAMS,
        Knob("decay", decays, 0.0, 1.0, "resume: halve the charge of a tool each second", True),
        Knob(
            "counts_marks",
            counts_marks,
            0.0,
            1.0,
            "stop when marked tokens cover the overflow",
            True,
        ),
        Knob("shares_prefix", shares_prefix, 0.0, 1.0, "charge a group's prefix once", True),
    )


_CONCURRENCY: Final = (
    Knob("lag_max", 8.0, 0.0, 64.0, "versions that a trained group may lag", is_whole=True),
    Knob("poll_s", 5.0, 0.5, 60.0, "seconds between looks at the engines"),
    Knob("growth", 1.25, 1.0, 2.0, "growth of the cap for each turnover of what is in flight"),
    Knob("grow_below", 0.6, 0.0, 1.0, "KV use above which the cap does not grow"),
    Knob("binding_share", 0.9, 0.0, 1.0, "share of the cap that must be in flight for it to grow"),
    Knob("soft_usage", 0.8, 0.0, 1.0, "KV use above which the cap is lowered"),
    Knob("hard_usage", 0.9, 0.0, 1.0, "KV use above which the youngest are cancelled too"),
    Knob("target_usage", 0.7, 0.0, 1.0, "KV use that a trim aims at"),
    Knob("trim_pause_polls", 6.0, 0.0, 100.0, "polls between two trims", is_whole=True),
    Knob("queue_ratio", 0.5, 0.0, 10.0, "waiting turns for each running one that are too many"),
    Knob("queue_polls", 6.0, 1.0, 100.0, "polls in a row of too long a queue before a cut", True),
    Knob("queue_cut", 0.9, 0.0, 1.0, "share of what is in flight that a cut for a queue leaves"),
    Knob("preemption_cut", 0.8, 0.0, 1.0, "share that a cut for preemptions leaves"),
    Knob("repeated_cut", 0.5, 0.0, 1.0, "share that a cut soon after another leaves"),
    Knob(
        "grace_polls", 6.0, 0.0, 100.0, "polls after a drain in which a cut is a repeated one", True
    ),
    Knob("in_flight_min", 8.0, 1.0, 1024.0, "the cap is never lower", is_whole=True),
    Knob("in_flight_max", 1024.0, 1.0, 65_536.0, "the cap is never higher", is_whole=True),
    Knob("in_flight_first", 0.0, 0.0, 65_536.0, "first cap; 0: KV capacity / context_tokens", True),
    Knob(
        "context_tokens", 100_000.0, 1.0, 1e6, "longest context, for the first cap", is_whole=True
    ),
    Knob("cancels", 1.0, 0.0, 1.0, "a hard trim cancels (1, begun anew) or suspends (0)", True),
)

KNOBS: Final[dict[StrategyName, tuple[Knob, ...]]] = {
    StrategyName.VENUS: (),
    StrategyName.ORACLE: (),
    StrategyName.RANDOM: (),
    StrategyName.SLIME_SYNC: (
        Knob("over_sampling", 1.0, 1.0, 4.0, "groups that are begun, in batches"),
    ),
    StrategyName.SLIME_ASYNC: _POOL,
    StrategyName.SLIME_BOUNDED: (*_POOL, _LAG),
    StrategyName.ROLLFLASH: (
        Knob("async_ratio", 1.0, 0.0, 64.0, "versions that an episode may lag", is_whole=True),
        Knob(
            "env_groups",
            0.0,
            0.0,
            4096.0,
            "queues of episodes; 0: one for each group of a batch",
            True,
        ),
        Knob("rollart", 0.0, 0.0, 1.0, "check the version each turn, abort and begin anew", True),
    ),
    StrategyName.THUNDERAGENT_UPSTREAM: _programs(0.0, 0.0, 0.0),
    StrategyName.THUNDERAGENT_PAPER: _programs(1.0, 1.0, 1.0),
    StrategyName.AIMD: _CONCURRENCY,
    StrategyName.TTL: (
        *_POOL,
        _LAG,
        Knob("ttl_max_s", 600.0, 0.0, 86_400.0, "pages of a tool call are never pinned longer"),
        Knob("ttl_unknown_s", 2.0, 0.0, 600.0, "pin of a tool call without history"),
    ),
    StrategyName.LONGEST: (
        Knob(
            "length_cap", 100_000.0, 1.0, 1e6, "tokens of a group of which nothing finished", True
        ),
    ),
}


ASCENDING: Final[dict[StrategyName, tuple[tuple[str, ...], ...]]] = {
    StrategyName.AIMD: (
        ("grow_below", "soft_usage", "hard_usage"),
        ("target_usage", "soft_usage"),
        ("in_flight_min", "in_flight_max"),
    ),
    StrategyName.TTL: (("ttl_unknown_s", "ttl_max_s"),),
}
"""Numbers that must not fall in this order: a cap that grows where it is trimmed means nothing."""


def contradictions(
    strategy: StrategyName, values: Mapping[str, float]
) -> list[tuple[tuple[str, float], tuple[str, float]]]:
    """Neighbours of `ASCENDING` that fall, each with its value: what is set, else the default."""
    known = {knob.name: values.get(knob.name, knob.default) for knob in KNOBS[strategy]}
    return [
        ((lower, known[lower]), (upper, known[upper]))
        for names in ASCENDING.get(strategy, ())
        for lower, upper in pairwise(names)
        if known[lower] > known[upper]
    ]


def find(strategy: StrategyName, name: str) -> Knob | None:
    """A knob of a strategy by its name."""
    return next((knob for knob in KNOBS[strategy] if knob.name == name), None)


def default_of(strategy: StrategyName, name: str) -> float:
    """The published default; asking for a knob that the strategy does not declare is an error of ours."""
    knob = find(strategy, name)
    assert knob is not None, f"{strategy} declares no knob {name}"
    return knob.default
