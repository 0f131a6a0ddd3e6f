"""Scheduling policies as a whole, all on this core: `venus` and the baselines it is measured against.

A strategy is one class of rules (`rules.py` names what it may decide) in a module of its own, whose
docstring names its source and published defaults. What engines obey is in `kv.rules`.
"""

from domain.plan import Scheduling, StrategyName
from scheduler.core.strategies.rules import Rules
from scheduler.core.strategies.venus import Venus


def rules_for(scheduling: Scheduling) -> Rules:
    """Fresh rules of a job; soft state of a strategy starts empty, also after a restart."""
    return _CLASSES.get(scheduling.strategy, Venus)(scheduling)


_CLASSES: dict[StrategyName, type[Rules]] = {StrategyName.VENUS: Venus}
