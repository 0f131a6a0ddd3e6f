"""What a rollout asked of judges: from its turns (told when it is sealed) and from its grading. Pure.

turns    -> metrics `judges/NAME/calls`, ... of the trajectory
grading  -> components `judges` of the row
both     -> one row a judge, written with the verdict and so exactly once
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from stores.system.grading import JudgeCount
from venusrl.env.host.judges import JudgeUse, JudgeUses, added

PREFIX: Final = "judges/"
FIELDS: Final = ("calls", "failed", "prompt_tokens", "sampled_tokens")


def named(uses: Mapping[str, JudgeUse], judges: Mapping[str, object]) -> JudgeUses:
    """Uses by the names of the spec: the only judge of a job need not be named by who asks it."""
    only = next(iter(judges)) if len(judges) == 1 else ""
    found: JudgeUses = {}
    for name, use in uses.items():
        added(found, {name or only: use})
    return found


def to_metrics(uses: Mapping[str, JudgeUse]) -> dict[str, float]:
    """Numbers for the trajectory's metrics."""
    return {
        f"{PREFIX}{name}/{field}": float(count)
        for name, use in sorted(uses.items())
        for field, count in asdict(use).items()
    }


def from_metrics(metrics: Mapping[str, float]) -> JudgeUses:
    """The uses that `to_metrics` wrote; other metrics are not looked at."""
    uses: JudgeUses = {}
    for key, value in metrics.items():
        name, _, field = key.removeprefix(PREFIX).rpartition("/")
        if key.startswith(PREFIX) and field in FIELDS:
            added(uses, {name: JudgeUse(**{field: int(value)})})
    return uses


def counts_of(*parts: Mapping[str, JudgeUse]) -> tuple[JudgeCount, ...]:
    """Rows of the sum of all parts, in the order of names."""
    total: JudgeUses = {}
    for part in parts:
        added(total, part)
    return tuple(JudgeCount(name, **asdict(use)) for name, use in sorted(total.items()))
