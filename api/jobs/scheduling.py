"""What of a spec's `scheduling` does not fit its strategy: unknown numbers, combinations without effect.

The job's `max_staleness` and `async_ratio` bind every strategy. What a strategy would do beyond them it
does not do, and that is said here, so that nobody takes a bound run for a published one.
"""

from typing import Final

from api.jobs.outcome import Outcome
from api.jobs.running_ahead import ORDERED, UNUSED_ORDER, order_of, rollflash_batches
from api.problems import escaped, near_names
from domain import knobs
from domain.plan import Mechanism, StrategyName
from venusrl.models.job_spec import JobSpec

UNBOUNDED_STALENESS: Final = 64
"""The largest `max_staleness` a spec can say, and what `slime-async` needs to be itself: no run keeps a
group for so many steps, so that nothing is ever dropped for its age."""

OF_VENUS: Final = frozenset({StrategyName.VENUS, StrategyName.ORACLE, StrategyName.RANDOM})
"""Strategies that have all mechanisms."""

RANKED: Final = frozenset({StrategyName.LONGEST, StrategyName.TTL})
"""Strategies that order engines by rank and have no other mechanism of `venus`."""


def check_scheduling(spec: JobSpec, outcome: Outcome) -> None:
    """Find what the strategy does not know, or what would do nothing under it."""
    strategy = StrategyName(spec.scheduling.strategy)
    _check_knobs(spec, strategy, outcome)
    _check_mechanisms(spec, strategy, outcome)
    _check_order(spec, strategy, outcome)
    match strategy:
        case StrategyName.SLIME_SYNC:
            _check_sync(spec, outcome)
        case StrategyName.SLIME_ASYNC:
            _check_unbounded(spec, outcome)
        case StrategyName.ORACLE:
            message = (
                "Nobody knows how long a real rollout still takes: oracle then orders as venus."
            )
            outcome.warn("/scheduling/strategy", "no_effect", message, "Use it in simulations.")
        case StrategyName.ROLLFLASH:
            _check_rollflash(spec, outcome)
        case StrategyName.AIMD:
            _check_aimd(spec, outcome)
        case _:
            _check_bounds(spec, outcome)


def _check_knobs(spec: JobSpec, strategy: StrategyName, outcome: Outcome) -> None:
    for name, value in spec.scheduling.knobs.items():
        pointer = f"/scheduling/knobs/{escaped(name)}"
        knob = knobs.find(strategy, name)
        if knob is None:
            known = [one.name for one in knobs.KNOBS[strategy]]
            hint = near_names(name, known).strip() or f"Known here: {', '.join(known) or 'none'}."
            outcome.error(pointer, "unknown_knob", f"{strategy} has no number {name}.", hint)
        elif not knob.accepts(value):
            kind = "a whole number" if knob.is_whole else "a number"
            message = f"{name} ({knob.what}) is {kind} from {knob.low:g} to {knob.high:g}."
            outcome.error(pointer, "out_of_range", message, f"The default is {knob.default:g}.")
    for (lower, low), (upper, high) in knobs.contradictions(strategy, spec.scheduling.knobs):
        name = lower if lower in spec.scheduling.knobs else upper
        message = f"{lower} {low:g} is above {upper} {high:g}; what is left out has its default."
        hint = f"Set {lower} and {upper} so that the first is not above the second."
        outcome.error(f"/scheduling/knobs/{name}", "knobs_contradict", message, hint)


def _check_order(spec: JobSpec, strategy: StrategyName, outcome: Outcome) -> None:
    """An order under a strategy that has its own; what `auto` stands for says nothing and is no wish."""
    order = spec.scheduling.order
    if strategy not in ORDERED and order not in ("auto", UNUSED_ORDER):
        message = f"{strategy} has an order of its own, whatever the job's."
        outcome.warn("/scheduling/order", "no_effect", message, "Leave the order auto.")


def _check_mechanisms(spec: JobSpec, strategy: StrategyName, outcome: Outcome) -> None:
    """A switch that switches nothing: of what the strategy does not have, or a second time."""
    known = _mechanisms(spec, strategy)
    seen: set[str] = set()
    for index, name in enumerate(spec.scheduling.off):
        if name in seen:
            message = f"{name} is in the list already."
            outcome.warn(f"/scheduling/off/{index}", "no_effect", message, "Name it once.")
        elif name not in known:
            message = f"{strategy} has no {name} that could be switched off."
            if name == "predictor" and strategy in ORDERED:
                message = "An order by age asks no predictor: the job is the same without it."
            outcome.warn(f"/scheduling/off/{index}", "no_effect", message)
        seen.add(name)


def _mechanisms(spec: JobSpec, strategy: StrategyName) -> set[str]:
    """What can be switched off with an effect; when the trainer works is the same for all."""
    if strategy in RANKED:
        return {"streaming", "priority"}
    if strategy not in OF_VENUS:
        return {"streaming"}
    known = {one.value for one in Mechanism}
    chosen = spec.scheduling.order
    order = order_of(spec)[0] if chosen == "auto" else chosen
    return known if strategy in ORDERED and order != "oldest" else known - {"predictor"}


def _check_sync(spec: JobSpec, outcome: Outcome) -> None:
    """One batch at a time: only over-sampling uses more than one, and needs both bounds for it."""
    scheduling, ratio = spec.scheduling, spec.scheduling.async_ratio
    sampled = scheduling.knobs.get("over_sampling", 1.0)
    if ratio != "auto" and ratio > sampled:
        message = f"slime-sync begins {sampled:g} batches at a time, whatever the ratio."
        outcome.warn("/scheduling/async_ratio", "no_effect", message, "Leave the ratio auto.")
    is_asked = "max_staleness" in scheduling.model_fields_set and scheduling.max_staleness > 0
    if is_asked and sampled <= 1.0:
        message = "slime-sync generates nothing for a later step: its groups are never stale."
        outcome.warn("/scheduling/max_staleness", "no_effect", message, "Set it to 0.")
    allowed = min(sampled if ratio == "auto" else ratio, scheduling.max_staleness + 1)
    if sampled > allowed:
        message = f"async_ratio and max_staleness allow {allowed:g} batches at a time."
        hint = "Raise both, or lower over_sampling."
        outcome.warn("/scheduling/knobs/over_sampling", "no_effect", message, hint)


def _check_unbounded(spec: JobSpec, outcome: Outcome) -> None:
    """A job says itself that it trains on groups of any age.

    With a smaller bound the platform would drop what `slime-async` trains: that strategy exists and is
    called `slime-bounded`; the default of 2 must not make one pass for the other.
    """
    if spec.scheduling.max_staleness < UNBOUNDED_STALENESS:
        message = "slime-async trains on groups of any age, and this job accepts only some."
        hint = f"Set max_staleness to {UNBOUNDED_STALENESS} to accept any, or use slime-bounded."
        outcome.error("/scheduling/max_staleness", "unbounded_staleness", message, hint)


def _check_rollflash(spec: JobSpec, outcome: Outcome) -> None:
    """Its queues hold so many episodes each, whatever the job's ratio."""
    _check_bounds(spec, outcome)
    queues, batch = spec.scheduling.knobs.get("env_groups", 0.0), spec.rollout.groups_per_batch
    if 0.0 < queues < batch:
        message = f"{queues:g} queues begin as many groups a step, and a batch takes {batch}."
        hint = "Set env_groups to groups_per_batch or more; 0 takes groups_per_batch."
        outcome.error("/scheduling/knobs/env_groups", "knobs_contradict", message, hint)
        return
    ratio, most = spec.scheduling.async_ratio, rollflash_batches(spec)
    if ratio != "auto" and ratio > most:
        message = f"rollflash begins {most:g} batches at a time, whatever the ratio."
        hint = "Leave the ratio auto, or raise the knobs async_ratio or env_groups."
        outcome.warn("/scheduling/async_ratio", "no_effect", message, hint)


def _check_aimd(spec: JobSpec, outcome: Outcome) -> None:
    _check_bounds(spec, outcome)
    given = spec.scheduling.knobs
    if given.get("in_flight_first", 0.0) > 0.0 and "context_tokens" in given:
        message = "in_flight_first is the first cap, whatever the longest context."
        outcome.warn("/scheduling/knobs/context_tokens", "no_effect", message)


def _check_bounds(spec: JobSpec, outcome: Outcome) -> None:
    """A strategy's own bound beyond the job's."""
    most = spec.scheduling.max_staleness
    for name in ("lag_max", "async_ratio"):
        if spec.scheduling.knobs.get(name, 0.0) > most:
            message = f"No group lags more than max_staleness {most}."
            outcome.warn(f"/scheduling/knobs/{name}", "no_effect", message)
