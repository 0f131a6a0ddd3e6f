"""Scheduling policies as a whole, all on this core: `venus` and the baselines it is measured against.

A strategy is one class of rules (`rules.py` names what it may decide) in a module of its own, whose
docstring names its source and published defaults; its numbers are declared in `domain.knobs`. What
engines obey is in `kv.rules`. The heart of each is in plain functions beside it: `episodes.py`,
`programs.py`, `concurrency.py`, `capacity.py`.
"""

from typing import Final

from domain.plan import Scheduling, StrategyName
from scheduler.core.rules import Rules
from scheduler.core.strategies.aimd import Aimd
from scheduler.core.strategies.orders import Longest, Oracle, Random
from scheduler.core.strategies.rollflash import RollFlash
from scheduler.core.strategies.slime import SlimeAsync, SlimeBounded, SlimeSync
from scheduler.core.strategies.thunderagent import ThunderAgent
from scheduler.core.strategies.ttl import Ttl
from scheduler.core.strategies.venus import Venus


def rules_for(scheduling: Scheduling) -> Rules:
    """Fresh rules of a job; soft state of a strategy starts empty, also after a restart."""
    return _CLASSES[scheduling.strategy](scheduling)


_CLASSES: Final[dict[StrategyName, type[Rules]]] = {
    StrategyName.VENUS: Venus,
    StrategyName.SLIME_SYNC: SlimeSync,
    StrategyName.SLIME_ASYNC: SlimeAsync,
    StrategyName.SLIME_BOUNDED: SlimeBounded,
    StrategyName.ROLLFLASH: RollFlash,
    StrategyName.THUNDERAGENT_UPSTREAM: ThunderAgent,
    StrategyName.THUNDERAGENT_PAPER: ThunderAgent,
    StrategyName.AIMD: Aimd,
    StrategyName.TTL: Ttl,
    StrategyName.LONGEST: Longest,
    StrategyName.ORACLE: Oracle,
    StrategyName.RANDOM: Random,
}
