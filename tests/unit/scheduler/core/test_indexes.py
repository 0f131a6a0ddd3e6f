"""Each index and counter that drifts from the records is found by the invariants."""

from collections.abc import Callable

import pytest

from domain.ids import RolloutId
from domain.plan import EvaluationPlan, Order
from scheduler.core import invariants
from scheduler.core.invariants import InvariantBroken
from scheduler.core.order import choose_critical
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id, gid, rid

JOB = plan(async_ratio=3.0, max_staleness=2, evaluation=EvaluationPlan(1, 1, None))


def forgotten_member(bench: Bench) -> None:
    del bench.core.state.members[rid(2)]


def foreign_member(bench: Bench) -> None:
    state = bench.core.state
    state.members[RolloutId("ro_x")] = state.members[rid(2)]


def lost_sandbox_of_all(bench: Bench) -> None:
    bench.core.state.sandboxes -= 1


def late_node(bench: Bench) -> None:
    bench.core.state.live_nodes = []


def late_engine(bench: Bench) -> None:
    bench.core.state.engines_of(bench.job())
    bench.job().engines = []


def unfit_engine(bench: Bench) -> None:
    bench.job().fitting[7] = [bench.core.state.hosts[engine_id()]]


def miscounted_training(bench: Bench) -> None:
    bench.job().roster.training += 1


def miscounted_unfinished(bench: Bench) -> None:
    bench.job().roster.unfinished -= 1


def unseen_close(bench: Bench) -> None:
    bench.job().roster.closed[gid(2)] = bench.group(2)


def forgotten_grading(bench: Bench) -> None:
    for rollout in bench.group(2).rollouts:
        bench.close(rollout)
    bench.job().roster.grading.clear()


def forgotten_evaluation(bench: Bench) -> None:
    bench.job().roster.evaluating.clear()


def old_deadline(bench: Bench) -> None:
    bench.group(2).last_valid += 1


def forgotten_due(bench: Bench) -> None:
    bench.job().roster.due.clear()


def forgotten_young(bench: Bench) -> None:
    bench.job().roster.young.clear()


def forgotten_fork(bench: Bench) -> None:
    bench.job().asked.clear()


def forgotten_complete(bench: Bench) -> None:
    bench.job().is_closing_step = False
    for ordinal in (0, 1, 2):
        bench.play(bench.group(ordinal))
    bench.job().roster.waiting.clear()


def high_hint(bench: Bench) -> None:
    bench.job().free_from = 1


def unordered(bench: Bench) -> None:
    bench.job().roster.normal.reverse()


def wrongly_critical(bench: Bench) -> None:
    group = bench.group(3)
    group.is_critical = not group.is_critical
    bench.job().roster.unranked[group.group_id] = None


def too_few_critical(bench: Bench) -> None:
    roster = bench.job().roster
    entry = roster.critical.pop()
    roster.normal.insert(0, entry)
    roster.unranked[entry[2]] = None
    bench.job().groups[entry[2]].is_chosen = bench.job().groups[entry[2]].is_critical = False


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (forgotten_member, "index of members"),
        (foreign_member, "index of members"),
        (lost_sandbox_of_all, "sandboxes of all jobs"),
        (late_node, "index of nodes"),
        (late_engine, "index of engines"),
        (unfit_engine, "index of engines for version 7"),
        (miscounted_training, "count of training groups"),
        (miscounted_unfinished, "count of unfinished groups"),
        (unseen_close, "index of closed groups"),
        (forgotten_grading, "index of grading groups"),
        (forgotten_evaluation, "index of evaluation groups"),
        (old_deadline, "last valid step of grp_a_000000002"),
        (forgotten_due, "index of due groups"),
        (forgotten_young, "index of young groups"),
        (forgotten_fork, "index of asked forks"),
        (forgotten_complete, "index of complete groups"),
        (high_hint, "a position below the first free one is free"),
        (unordered, "index of the order"),
        (wrongly_critical, "grp_a_000000003 in order"),
        (too_few_critical, "2 critical groups are needed"),
    ],
)
def test_a_drifted_index_is_found(break_it: Callable[[Bench], None], sentence: str) -> None:
    bench = Bench.running(JOB)
    evaluated = next(g for g in bench.job().groups.values() if not g.is_training)
    invariants.check(bench.core.state, [])
    bench.ready(evaluated.rollouts[0])
    break_it(bench)
    with pytest.raises(InvariantBroken, match=sentence):
        invariants.check(bench.core.state, [])


@pytest.mark.parametrize("order", list(Order))
def test_the_critical_set_that_follows_each_event_is_the_one_made_anew(order: Order) -> None:
    bench = Bench.running(plan(order=order, async_ratio=4.0, max_staleness=3, expected_turns=30))
    job = bench.job()
    for group in list(job.groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    for ordinal, turns in ((0, 3), (1, 17), (2, 9), (4, 25), (5, 1), (3, 14), (0, 20), (5, 22)):
        for rollout in bench.group(ordinal).rollouts:
            bench.turn(rollout, max(turns, rollout.turn + 1))
        kept = [group.ordinal for group in job.training_groups() if group.is_critical]
        choose_critical(job)
        anew = [group.ordinal for group in job.training_groups() if group.is_critical]
        assert kept == anew
