"""What a leader says of a schedule, from the core's state over rows to the API's answer."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from domain.errors import FencedOut
from domain.ids import AttemptId, JobId, RolloutId
from domain.states import HostKind
from domain.wire import HostSnapshot
from infra.frames import Channel
from scheduler import schedule
from scheduler.context import JobContext
from scheduler.core.records import GroupRecord
from scheduler.hosts import Connected, Hosts
from scheduler.progress import Throughput
from scheduler.schedule import ScheduleWriter
from stores import tables as t
from stores.unit_of_work import Database
from tests.integration.api.world import Tenant, installation
from tests.simulation.driver import Workload, World
from tests.simulation.plans import POOL, plan
from tests.support.requirements import requires
from venusrl.client import NotFound

pytestmark = [pytest.mark.integration, requires("postgres")]


@dataclass
class Desk:
    """A simulated pool whose job is a row of a tenant, and the leader that tells of it."""

    tenant: Tenant
    pool: World
    job_id: JobId
    hosts: Hosts
    contexts: dict[JobId, JobContext]

    def writes(self, *acts: Callable[[], None], term: int = 1) -> None:
        """A leader of this term that has said nothing yet: a pass after each act."""

        async def lead() -> None:
            assert self.pool.leader is not None
            database = Database(self.tenant.world.settings.database_url, 1)
            writer = ScheduleWriter(
                self.pool.leader,
                database,
                self.hosts,
                term,
                self.contexts,
                throughput=Throughput(),
            )
            try:
                for act in acts:
                    await asyncio.to_thread(act)
                    await writer.write()
            finally:
                await database.close()

        asyncio.run(lead())

    def lead(self, term: int) -> None:
        """This term leads."""
        self.tenant.world.add(
            t.leadership, id=1, term=term, address="", key=b"", backend_pid=0,
            heartbeat_at=datetime.now(UTC),
        )  # fmt: skip


@pytest.fixture
def desk(database_url: str, tmp_path: Path) -> Iterator[Desk]:
    """A job with slow turns, in the middle of its first step."""
    with installation(database_url, tmp_path / "home") as world:
        tenant = world.tenant()
        row = tenant.ended("running")
        job_id, attempt = JobId(row["id"]), AttemptId(row["attempt_id"])
        pool = World(POOL, Workload(turn_s=lambda rollout, turn: 5.0))
        job = pool.submit(plan(job_id=job_id, attempt_id=attempt))
        pool.run(lambda: any(one.node is not None for one in groups(pool, job_id)), 100.0)
        pool.run_for(2.0)
        known = SimpleNamespace(job_id=job_id, attempt_id=attempt, plan=job.plan)
        hosts = Hosts(_no_key, lambda joined: None, lambda peer, frame: None)
        made = Desk(tenant, pool, job_id, hosts, {job_id: cast(JobContext, known)})
        made.lead(1)
        yield made


async def _no_key(host: str, epoch: int) -> bytes | None:
    return None


def groups(pool: World, job_id: JobId) -> list[GroupRecord]:
    """Live groups of the simulated leader."""
    assert pool.leader is not None
    job = pool.leader.state.jobs.get(job_id)
    return [] if job is None else list(job.groups.values())


def nothing() -> None:
    """Time passes, nothing changes."""


def placed_on_an_engine(desk: Desk) -> RolloutId:
    """Some rollout that is on an engine host; the host is connected and silent."""
    found = next(r for g in groups(desk.pool, desk.job_id) for r in g.rollouts if r.host)
    assert found.host is not None
    snapshot = HostSnapshot(found.host, 1, HostKind.ENGINE, None, 8)
    desk.hosts.connected[found.host] = Connected(
        found.host, 1, HostKind.ENGINE, cast(Channel, None), snapshot
    )
    return found.rollout_id


def test_the_api_shows_the_groups_in_order_with_a_reason_for_each_rollout(desk: Desk) -> None:
    desk.writes(nothing)
    with desk.tenant.sdk() as client:
        shown = client.jobs.schedule(desk.job_id)
        short = client.jobs.schedule(desk.job_id, limit=1)
    live = groups(desk.pool, desk.job_id)
    assert {group.id for group in shown.groups} == {group.group_id for group in live}
    assert sum(shown.lanes.values()) == len(live) > 1
    assert (shown.filling_step, shown.need) == (1, 2)
    assert shown.next_group is not None
    assert short.groups == shown.groups[:1]
    assert short.groups_left_out == len(live) - 1
    first = shown.groups[0]
    assert (first.lane, first.last_valid_step) == ("critical", 2)
    for group in shown.groups:
        assert [one.id for one in group.rollouts] == [
            rollout.rollout_id
            for known in live
            if known.group_id == group.id
            for rollout in known.rollouts
        ]


def test_what_an_engine_host_says_of_its_rollouts_comes_before_what_the_core_knows(
    desk: Desk,
) -> None:
    rollout = placed_on_an_engine(desk)
    (peer,) = desk.hosts.connected.values()
    said = datetime(2026, 1, 1, tzinfo=UTC)

    def hear() -> None:
        peer.figures = {"slots": 8.0, "waiting": 3.0, "kv_pages": 10.0, "kv_pages_used": 4.0,
                        "cached_tokens": 30.0, "prefilled_tokens": 10.0}  # fmt: skip
        peer.phases[rollout] = "waits_for_slot", said.timestamp()

    desk.writes(nothing, hear)
    with desk.tenant.sdk() as client:
        shown = client.jobs.schedule(desk.job_id)
        profile = client.jobs.profile(desk.job_id)
    (one,) = [one for group in shown.groups for one in group.rollouts if one.id == rollout]
    assert (one.wait_reason, one.since) == ("waits_for_slot", said)
    assert one.numbers == {"slots": 8.0, "waiting": 3.0}
    assert (profile.kv_usage, profile.hit_rate) == (0.4, 0.75)
    assert profile.sandboxes is not None
    assert profile.sandboxes.used_bytes is None
    assert profile.sandboxes.used_bytes_reason


def test_an_unchanged_schedule_is_not_written_again(desk: Desk) -> None:
    written: list[object] = []

    def note() -> None:
        written.append(desk.tenant.world.rows(t.job_schedule)[0].written_at)

    desk.writes(nothing, note, note)
    assert written[0] == written[1]


def test_a_pass_writes_a_bounded_number_of_groups_and_the_next_one_the_rest(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "GROUPS_WRITTEN_MAX", 1)
    counts: list[int] = []

    def note() -> None:
        counts.append(len(desk.tenant.world.rows(t.job_schedule_group)))

    desk.writes(note, note, note)
    assert counts == [0, 1, 2]


def test_a_new_leader_leaves_nothing_of_the_former_one(desk: Desk) -> None:
    world = desk.tenant.world
    world.add(
        t.job_schedule_group, job_id=desk.job_id, group_id="grp_gone", body={"lane": "normal"}
    )
    desk.writes(nothing)
    kept = {row.group_id for row in world.rows(t.job_schedule_group)}
    assert kept == {group.group_id for group in groups(desk.pool, desk.job_id)}


def test_groups_that_are_trained_leave_and_an_ended_job_has_none(desk: Desk) -> None:
    world = desk.tenant.world
    before = {group.group_id for group in groups(desk.pool, desk.job_id)}

    def alive() -> set[str]:
        return {group.group_id for group in groups(desk.pool, desk.job_id)}

    def train() -> None:
        desk.pool.run(lambda: before.isdisjoint(alive()), 1000.0)

    desk.writes(nothing, train)
    after = {row.group_id for row in world.rows(t.job_schedule_group)}
    assert before.isdisjoint(after)
    assert after == {group.group_id for group in groups(desk.pool, desk.job_id)}
    desk.writes(nothing, desk.contexts.clear)
    assert world.rows(t.job_schedule_group) == []
    world.change(t.job, desk.job_id, state="succeeded")
    with desk.tenant.sdk() as client:
        assert client.jobs.schedule(desk.job_id).groups == []
        profile = client.jobs.profile(desk.job_id)
    (row,) = world.rows(t.job_schedule)
    assert row.profile["sandboxes"]["held"] > 0, "what was said last before the end"
    assert profile.active_batch is not None
    assert profile.sandboxes is not None
    assert (profile.active_batch.open_groups, profile.active_batch.running_rollouts) == (0, 0)
    assert (profile.sandboxes.held, profile.sandboxes.free) == (0, None)
    assert [engine.rollouts for engine in profile.engines] == [0, 0]
    assert profile.written_at == row.written_at


def test_a_leader_whose_term_is_over_writes_nothing(desk: Desk) -> None:
    with pytest.raises(FencedOut):
        desk.writes(nothing, term=2)
    assert desk.tenant.world.rows(t.job_schedule) == []


def add_rollout(desk: Desk, group: str, **values: Any) -> str:
    """Rows of a group and its first rollout, as the leader and a host would have written them."""
    world, id = desk.tenant.world, f"ro_{group.removeprefix('grp_')}_000"
    shared = {
        "job_id": desk.job_id,
        "attempt_id": desk.pool.rows.jobs[desk.job_id].plan.attempt_id,
        "organization_id": desk.tenant.organization_id,
    }
    world.add(
        t.rollout_group, id=group, ordinal=int(group.rpartition("_")[2]), purpose="train",
        task_id="t", environment_version_id="ev", policy_version=0, size=2, open=2, **shared,
    )  # fmt: skip
    world.add(t.rollout, id=id, group_id=group, index=0, **shared, **values)
    return id


def test_any_one_rollout_is_found_by_its_id(desk: Desk) -> None:
    live = groups(desk.pool, desk.job_id)[0].group_id
    rollout = add_rollout(desk, live)
    trained = live.replace("_000000000", "_000000077")
    former = add_rollout(desk, trained, end="done", disposition="trained(1)")
    desk.writes(nothing)
    with desk.tenant.sdk() as client:
        one = client.jobs.schedule_of(desk.job_id, rollout)
        gone = client.jobs.schedule_of(desk.job_id, former)
        with pytest.raises(NotFound):
            client.jobs.schedule_of(desk.job_id, "ro_x_000000000_000")
    assert (one.group_id, one.lane, one.job_state) == (live, "critical", "running")
    assert one.wait_reason in ("running", "sandbox_starts")
    assert (gone.stage, gone.wait_reason, gone.lane) == ("ended", None, None)
    assert gone.written_at is not None


def test_a_rollout_that_no_leader_has_taken_up_is_not_reported(desk: Desk) -> None:
    rollout = add_rollout(desk, groups(desk.pool, desk.job_id)[0].group_id)
    with desk.tenant.sdk() as client:
        assert client.jobs.schedule_of(desk.job_id, rollout).wait_reason == "not_reported"
        desk.tenant.world.change(t.job, desk.job_id, state="paused")
        assert client.jobs.schedule_of(desk.job_id, rollout).wait_reason == "job_not_running"
