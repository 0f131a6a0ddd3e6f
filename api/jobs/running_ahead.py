"""How far a job runs ahead and in which order, where its spec leaves it open: what `auto` stands for."""

from typing import Final

from domain import knobs
from domain.plan import StrategyName
from venusrl.models.job_spec import JobSpec

ORDERED: Final = frozenset({StrategyName.VENUS, StrategyName.ORACLE})
"""Strategies that the job's `order` orders; the others have their own."""

UNUSED_ORDER: Final = "oldest"
"""Stands in the spec of a job whose strategy orders by itself."""

AHEAD: Final = 1.5
"""Batches of unfinished groups of a job that may run ahead."""


def ratio_of(spec: JobSpec) -> tuple[float, str]:
    """`async_ratio` for `auto`, and why."""
    strategy = StrategyName(spec.scheduling.strategy)
    if strategy is StrategyName.SLIME_SYNC:
        sampled = max(spec.scheduling.knobs.get("over_sampling", 1.0), 1.0)
        return sampled, "slime-sync: one sampled batch at a time"
    if _is_synchronous(spec):
        return 1.0, "synchronous: nothing runs ahead"
    if strategy is StrategyName.ROLLFLASH and rollflash_batches(spec) < AHEAD:
        return max(rollflash_batches(spec), 1.0), "rollflash: as many as its queues hold"
    return AHEAD, "half a batch ahead"


def order_of(spec: JobSpec) -> tuple[str, str]:
    """`order` for `auto`, and why."""
    if spec.scheduling.strategy not in ORDERED:
        return UNUSED_ORDER, f"{spec.scheduling.strategy} has an order of its own"
    if _is_synchronous(spec):
        return "longest", "makespan counts"
    return "oldest", "bounds staleness best"


def rollflash_batches(spec: JobSpec) -> float:
    """Batches that the queues of `rollflash` have begun at any time: one episode for each version that
    one may lag, and one more, in each queue."""
    given = spec.scheduling.knobs
    lag = given.get("async_ratio", knobs.default_of(StrategyName.ROLLFLASH, "async_ratio"))
    batch = spec.rollout.groups_per_batch
    queues = given.get("env_groups", 0.0) or batch
    return (min(lag, spec.scheduling.max_staleness) + 1.0) * queues / batch


def _is_synchronous(spec: JobSpec) -> bool:
    scheduling = spec.scheduling
    return scheduling.max_staleness == 0 and scheduling.async_ratio in ("auto", 1.0)
