"""The entry: quarantine, views, dumps, determinism of a step."""

import pytest

from domain.commands import OpenGroup, ReleaseGang, SetJobState
from domain.events import Tick
from domain.ids import JobId
from domain.plan import EvaluationPlan
from domain.states import HostKind, JobState
from scheduler.core import invariants
from scheduler.core.invariants import InvariantBroken
from scheduler.core.records import GroupPhase
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, engine_id, gid, trainer_id


def two_jobs() -> Bench:
    bench = Bench(pool(trainers=2))
    bench.node()
    for name in ("a", "b"):
        bench.start(plan(name, engines_max=1))
    return bench


def test_a_broken_job_is_named_as_the_suspect() -> None:
    bench = two_jobs()
    bench.job("b").positions[0] = gid(77, "b")
    with pytest.raises(InvariantBroken, match="job_b: positions and assigned groups differ"):
        bench.tick()
    assert bench.core.suspect == plan("b").job_id


def test_quarantine_drops_the_job_and_the_others_go_on() -> None:
    bench = two_jobs()
    bench.job("b").positions[0] = gid(77, "b")
    with pytest.raises(AssertionError):
        bench.tick()
    commands = bench.core.quarantine(plan("b").job_id)
    failed = [c for c in commands if isinstance(c, SetJobState)]
    assert [(c.state, c.failure_code) for c in failed] == [(JobState.FAILED, "internal")]
    assert commands[-1] == ReleaseGang(plan("b").job_id, plan("b").attempt_id)
    bench.tick()
    bench.play(bench.group(0))
    assert bench.core.view(plan("b").job_id) is None
    assert bench.core.quarantine(plan("b").job_id) == []


def test_quarantine_returns_what_the_failed_step_had_already_decided() -> None:
    bench = two_jobs()
    bench.job("a").reason = "changed"
    job = bench.job("b")
    job.groups[gid(0, "b")].phase = GroupPhase.COMPLETE
    bench.job("a").generation = 5
    with pytest.raises(AssertionError):
        bench.tick()
    commands = bench.core.quarantine(plan("b").job_id)
    answered = [c for c in commands if isinstance(c, SetJobState) and c.observed_generation == 5]
    assert [c.job_id for c in answered] == [plan("a").job_id]


def test_a_view_shows_where_every_group_stands() -> None:
    bench = Bench.running(plan(max_staleness=1, async_ratio=9.0, max_steps=9))
    for ordinal in (1, 2):
        bench.play(bench.group(ordinal))
    bench.play(bench.group(3))
    view = bench.core.view(plan().job_id)
    assert view is not None
    assert view.open_groups == (gid(0),)
    assert view.complete_groups == (gid(3),)
    assert view.assigned_groups == (gid(1), gid(2))
    assert view.assigned_staleness == (0, 0)
    assert view.critical_groups == (gid(0),)
    assert (view.filling_step, view.committed_step, view.sandboxes) == (1, 0, 2)
    assert {(h.host_id, h.kind) for h in view.hosts} == {
        (engine_id(), HostKind.ENGINE),
        (trainer_id(), HostKind.TRAINER),
    }


def test_a_view_shows_a_running_evaluation() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(3, 1, None)))
    view = bench.core.view(plan().job_id)
    assert view is not None
    assert view.evaluation is not None
    assert (view.evaluation.step, view.evaluation.opened, view.evaluation.unfinished) == (0, 3, 3)


def test_a_view_of_a_queued_job_shows_its_position() -> None:
    bench = Bench.running()
    bench.submit(plan("b"))
    view = bench.core.view(plan("b").job_id)
    assert view is not None
    assert (view.state, view.queue_position) == (JobState.QUEUED, 1)
    assert view.reason is not None


def test_a_dump_holds_the_whole_record() -> None:
    bench = Bench.running()
    text = bench.core.dump(plan().job_id)
    assert gid(0) in text
    assert "policy" in text
    assert bench.core.dump(JobId("job_z")) == "None"


def test_unchecked_coordinators_skip_the_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.running()
    calls: list[object] = []
    monkeypatch.setattr(invariants, "check", lambda *args: calls.append(args))
    bench.core.checking = False
    bench.feed(Tick())
    assert calls == []


def test_commands_come_in_the_order_in_which_they_must_be_executed() -> None:
    bench = Bench.running()
    first = next(i for i, c in enumerate(bench.commands) if isinstance(c, OpenGroup))
    group = bench.commands[first]
    assert isinstance(group, OpenGroup)
    assert "ForkSandboxes" in type(bench.commands[first + 1]).__name__
