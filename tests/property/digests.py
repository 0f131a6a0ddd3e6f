"""Digests of all commands of some runs, printed: what must be the same under every hash seed."""

import hashlib
import sys
from typing import Final

from domain import events as e
from domain.commands import Command
from domain.plan import StrategyName
from tests.mutants.registry import apply_from_environment
from tests.property.worlds import random_world, run_out
from tests.simulation.small import world

FAULTY_SEEDS: Final = (3, 11, 27, 38)
"""One and two jobs, one and two engines each, faults of every kind."""

STRATEGIES: Final = tuple(StrategyName)


def faulty_worlds() -> str:
    """Coordinators that hosts, links, leaders and users make trouble for."""
    digest = hashlib.sha256()
    for seed in FAULTY_SEEDS:
        run, jobs, chance = random_world(seed)
        run_out(run, jobs, chance)
        digest.update(repr(run.log).encode())
    return digest.hexdigest()


def simulated(strategy: StrategyName) -> str:
    """A small run on modelled engines with a host tier: gaps, reloads, migration."""
    run, digest = world(strategy, seed=5), hashlib.sha256()
    step = run.core.step

    def recorded(now: float, event: e.Event) -> list[Command]:
        commands = step(now, event)
        digest.update(repr((now, commands)).encode())
        return commands

    run.core.step = recorded  # type: ignore[method-assign]
    outcome = run.run()
    assert strategy is not StrategyName.VENUS or outcome.moves > 0, "nothing migrated"
    return digest.hexdigest()


def main() -> None:
    """One line a run."""
    sys.stdout.write(f"faulty worlds {faulty_worlds()}\n")
    for strategy in STRATEGIES:
        sys.stdout.write(f"{strategy} {simulated(strategy)}\n")


if __name__ == "__main__":
    apply_from_environment()
    main()
