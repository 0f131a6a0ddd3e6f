"""Runs state machines from seeds.

Draws also depend on the modules that a process has loaded, for hypothesis takes constants from them: how
often a transition is seen in one round is not fixed. So what must have been seen is reached in rounds.
"""

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROUNDS_MAX = 6
"""Until all has been seen; most often one is enough."""


def run_round(machine: type[RuleBasedStateMachine], number: int, examples: int, steps: int) -> None:
    """One round; its number is its seed."""
    run_state_machine_as_test(
        seeded(number)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def explore(
    machine: type[RuleBasedStateMachine], is_enough: Callable[[], bool], examples: int, steps: int
) -> None:
    """Rounds until enough has been seen; whether it has is for the caller to assert."""
    for number in range(ROUNDS_MAX):
        run_round(machine, number, examples, steps)
        if is_enough():
            return
