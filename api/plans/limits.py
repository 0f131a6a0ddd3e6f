"""What a plan may ask for, and which settings of a recorded job the simulator can change."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from api.problems import Finding

STEPS_DEFAULT: Final = 12
"""Simulated steps unless others are asked for: beyond the ramp of an asynchronous job, and cheap."""

ROLLOUTS_MAX: Final = 50_000
"""Simulated rollouts of all runs of a plan: a minute or two of one core."""

MODELLED: Final = frozenset(
    {
        "/scheduling/strategy",
        "/scheduling/off",
        "/scheduling/knobs",
        "/scheduling/order",
        "/scheduling/async_ratio",
        "/scheduling/max_staleness",
        "/rollout/group_size",
        "/rollout/groups_per_batch",
        "/resources/rollout_gpus/min",
        "/resources/rollout_gpus/max",
        "/stop/max_steps",
    }
)
"""Places of a spec that a what-if may change."""

KNOBS: Final = "/scheduling/knobs"
"""Numbers of the strategy, each of which may be changed by its name."""

REASONS: Final[Mapping[str, str]] = {
    "/model": "another model samples other turns at another speed; nothing recorded says which",
    "/environments": "other tasks and tools give other rollouts; plan a spec with a profile instead",
    "/rollout/sampling": "other sampling gives other turns; nothing recorded says which",
    "/rollout/max_tokens": "rollouts that went on beyond it were not recorded",
    "/rollout": "the simulator has no failing tries and no verdicts of its own",
    "/algorithm": "what is learned changes the rollouts, which the simulator repeats as they were",
    "/optimizer": "what is learned changes the rollouts, which the simulator repeats as they were",
    "/evaluation": "evaluations are not simulated",
    "/checkpoints": "checkpoints take no time in the simulator",
    "/scheduling": 'it holds settings; name those that change, as in {"max_staleness": 1}',
    "/resources/rollout_gpus": 'name its bounds, as in {"min": 2, "max": 4}',
    "/resources": "the simulator has one trainer and engines that are one host each",
    "/stop": "only the last step ends a simulated job",
    "/budget": "a budget changes no step; hold the forecast's total against it",
    "/judges": "the simulator has no verdicts of its own",
}
"""By the longest prefix of a place: why it cannot be changed."""

NO_EFFECT: Final = "it has no effect on the schedule"


def unmodelled(changes: Mapping[str, Any]) -> list[Finding]:
    """A finding for each changed place that the simulator cannot change."""
    return [
        Finding(
            f"/changes{pointer}",
            "not_modelled",
            f"A what-if cannot change {pointer}: {_reason(pointer)}.",
            f"It can change {', '.join(sorted(MODELLED))}.",
        )
        for pointer in leaves(changes)
        if pointer not in MODELLED and pointer.rpartition("/")[0] != KNOBS
    ]


def leaves(document: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Pointers of everything that is no mapping, in the document's order."""
    for key, value in document.items():
        pointer = f"{above}/{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, pointer)
        else:
            yield pointer


def too_large(rollouts: int) -> list[Finding]:
    """A finding where all runs of a plan have more rollouts than one may ask for."""
    if rollouts <= ROLLOUTS_MAX:
        return []
    message = (
        f"The plan simulates {rollouts} rollouts; at most {ROLLOUTS_MAX} in all runs together."
    )
    hint = "Ask for fewer steps or replicas: rollouts = steps x groups x group_size x replicas."
    return [Finding("/steps", "plan_too_large", message, hint)]


def _reason(pointer: str) -> str:
    prefixes = [one for one in REASONS if pointer == one or pointer.startswith(f"{one}/")]
    return REASONS[max(prefixes, key=len)] if prefixes else NO_EFFECT
