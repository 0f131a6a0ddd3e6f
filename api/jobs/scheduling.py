"""What of a spec's `scheduling` does not fit its strategy: unknown numbers, combinations without effect.

The job's `max_staleness` and `async_ratio` bind every strategy. What a strategy would do beyond them it
does not do, and that is said here, so that nobody takes a bound run for a published one.
"""

from typing import Final

from api.jobs.outcome import Outcome
from api.problems import escaped, near_names
from domain import knobs
from domain.plan import StrategyName
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


def _check_mechanisms(spec: JobSpec, strategy: StrategyName, outcome: Outcome) -> None:
    """A switch of what a strategy does not have; when the trainer works is the same for all."""
    if strategy in OF_VENUS:
        return
    known = {"streaming", "priority"} if strategy in RANKED else {"streaming"}
    for index, name in enumerate(spec.scheduling.off):
        if name not in known:
            message = f"{strategy} has no {name} that could be switched off."
            outcome.warn(f"/scheduling/off/{index}", "no_effect", message)


def _check_sync(spec: JobSpec, outcome: Outcome) -> None:
    """One batch at a time: only over-sampling uses more than one, and needs both bounds for it."""
    scheduling, ratio = spec.scheduling, spec.scheduling.async_ratio
    sampled = scheduling.knobs.get("over_sampling", 1.0)
    if ratio != "auto" and ratio > sampled:
        message = f"slime-sync begins {sampled:g} batches at a time, whatever the ratio."
        outcome.warn("/scheduling/async_ratio", "no_effect", message, "Leave the ratio auto.")
    if scheduling.max_staleness > 0 and sampled <= 1.0:
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


def _check_bounds(spec: JobSpec, outcome: Outcome) -> None:
    """A strategy's own bound beyond the job's."""
    most = spec.scheduling.max_staleness
    for name in ("lag_max", "async_ratio"):
        if spec.scheduling.knobs.get(name, 0.0) > most:
            message = f"No group lags more than max_staleness {most}."
            outcome.warn(f"/scheduling/knobs/{name}", "no_effect", message)
