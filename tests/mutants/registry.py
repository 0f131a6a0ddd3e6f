"""Mutants: one expression of one function replaced by a wrong one, and the tests that must fail then.

A mutant is made from the function's own source, in which the replaced text must occur exactly once:
one that no longer fits the code fails loudly instead of proving nothing. Calls are counted.
"""

import atexit
import importlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

CORE: Final = "tests/unit/scheduler/core"

NAME_VARIABLE: Final = "TEST_MUTANT"
"""Processes that a test starts apply the same mutant when they find it here."""

CALLS_VARIABLE: Final = "TEST_MUTANT_CALLS"
"""File to which each process adds, at its end, how often the mutated function was called."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`target` is module:function; `tests` are ids of which at least one fails under the mutant."""

    name: str
    target: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS: Final = (
    Mutant(
        "no term fence",
        "infra.link:LeaderLink._session",
        "leader.term < self.highest_term",
        "leader.term < 0",
        ("tests/integration/infra/test_link.py::test_host_that_served_a_newer_term_obeys_no_older_leader",),
    ),
    Mutant(
        "no hop fence",
        "scheduler.core.refusals:_check_rollout",
        "event.hop != rollout.hop",
        "event.hop < 0",
        (f"{CORE}/test_refusals.py::test_late_and_repeated_events_are_refused_with_their_reason",),
    ),
    Mutant(
        "no epoch check",
        "scheduler.core.refusals:_check_host",
        "event.epoch < least",
        "event.epoch < 0",
        (f"{CORE}/test_hosts.py",),
    ),
    Mutant(
        "prefix charged once a member",
        "simulation.device:Device.pages_for",
        "context - stream.prefix.tokens",
        "context",
        ("tests/unit/simulation/test_golden.py::test_a_prefix_of_two_rollouts_is_computed_held_and_read_once",),
    ),
    Mutant(
        "prefix read once a member",
        "simulation.engine:ModelledEngine._kv_tokens",
        "total -= prefix.tokens",
        "total -= 0",
        ("tests/unit/simulation/test_golden.py::test_a_prefix_of_two_rollouts_is_computed_held_and_read_once",),
    ),
    Mutant(
        "promotion off by one",
        "scheduler.core.order:is_promoted",
        "group.last_valid <= job.filling",
        "group.last_valid < job.filling",
        (f"{CORE}/test_order.py::test_ranks_put_evaluation_before_promoted_before_critical_before_normal",),
    ),
    Mutant(
        "eviction of a high page in its own tick",
        "simulation.room:Room._admit_by_class",
        "self._evict_for(choice.admitted, choice.low)",
        "self._evict_for(choice.admitted, [*choice.admitted, *choice.low])",
        ("tests/property/test_engines.py::test_pages_add_up_nobody_is_passed_over_and_every_turn_ends",),
    ),
    Mutant(
        "gang in halves",
        "scheduler.core.gangs:missing_now",
        "lack is None",
        'lack is None or lack.noun != "trainers"',
        (f"{CORE}/test_gangs.py",),
    ),
    Mutant(
        "staleness by newest token",
        "scheduler.core.records:GroupRecord.oldest_possible_version",
        "min(known",
        "max(known",
        (f"{CORE}/test_batches.py", f"{CORE}/test_order.py"),
    ),
    Mutant(
        "double assignment",
        "scheduler.core.batches:_assign",
        "roster.move(run.state, job, group, GroupPhase.ASSIGNED)",
        "None",
        (f"{CORE}/test_batches.py::test_the_last_assignment_closes_the_step_once",),
    ),
    Mutant(
        "unpaced start",
        "scheduler.core.pacing:may_open",
        "groups.training < alive_max(job, version) and groups.unfinished < open_max(job)",
        "groups.training < 99",
        (f"{CORE}/test_pacing.py::test_groups_start_within_both_bounds",),
    ),
    Mutant(
        "starvation",
        "scheduler.core.order:age",
        "job.committed - step >= AGEING_BATCHES",
        "job.committed - step >= 10**6",
        (f"{CORE}/test_order.py::test_a_starved_group_becomes_critical_after_a_number_of_batches",),
    ),
    Mutant(
        "unstable tie",
        "scheduler.core.rules:least_loaded",
        "(engine.load, engine.host_id)",
        "(engine.load, hash(engine.host_id))",
        ("tests/property/test_determinism.py::test_three_hash_seeds_give_the_same_commands",),
    ),
)  # fmt: skip


def named(name: str) -> Mutant:
    """The mutant of this name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def resolve(mutant: Mutant) -> tuple[Any, Any, str]:
    """Module, owner and name of the mutated function."""
    module_name, _, path = mutant.target.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    return module, owner, name


def source_of(mutant: Mutant) -> str:
    """The wrong function's text."""
    _, owner, name = resolve(mutant)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(owner, name))))
    assert source.count(mutant.old) == 1, f"{mutant.name} does not fit {mutant.target}"
    return source.replace(mutant.old, mutant.new)


def apply(mutant: Mutant) -> Callable[[], int]:
    """Replace the function in this process; what it returns tells the calls since then."""
    module, owner, name = resolve(mutant)
    original, scope = inspect.unwrap(getattr(owner, name)), dict[str, Any]()
    exec(compile(source_of(mutant), f"<{mutant.name}>", "exec"), module.__dict__, scope)
    wrong, calls = scope[name], 0

    @wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return wrong(*args, **kwargs)

    setattr(owner, name, counted)
    for other in list(sys.modules.values()):
        if owner is module and getattr(other, name, None) is original:
            setattr(other, name, counted)
    return lambda: calls


def apply_from_environment() -> None:
    """Apply the mutant that the process that started this one is about, if any."""
    name, path = os.environ.get(NAME_VARIABLE), os.environ.get(CALLS_VARIABLE)
    if not name:
        return
    calls = apply(named(name))
    if not path:
        return

    def tell() -> None:
        with Path(path).open("a") as file:
            file.write(f"{calls()}\n")

    atexit.register(tell)
