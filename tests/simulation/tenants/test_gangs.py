"""Tenants 1:2:5 through the real coordinator: whole gangs, with modelled hosts."""

from dataclasses import dataclass, field

import pytest

from domain.commands import GrantGang, ReleaseGang
from domain.ids import JobId, OrganizationId
from domain.plan import Pool, TenantShare
from domain.states import Desired, JobState
from tests.simulation.driver import Workload, World
from tests.simulation.plans import plan
from tests.simulation.rows import JobRow

ORGS = {name: OrganizationId(f"org_{name}") for name in ("one", "two", "five")}
WEIGHTS = {"one": 1.0, "two": 2.0, "five": 5.0}
BACKLOG = 8
"""Jobs that each tenant keeps waiting while it is there: as many as there are engines."""


@dataclass(slots=True)
class Tenants:
    """Three tenants that submit jobs of one engine as long as they are there."""

    pool: Pool
    world: World = field(init=False)
    jobs: dict[str, list[JobRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.pool, Workload(start_s=0.2, step_s=0.2), slots=4)
        self.jobs = {name: [] for name in ORGS}

    def submit(self, tenant: str, steps: int = 4, **changes: object) -> JobRow:
        number = len(self.jobs[tenant])
        job = plan(
            f"{tenant}{number}",
            organization_id=ORGS[tenant],
            group_size=1,
            groups_per_batch=1,
            max_steps=steps,
            **({"engines_max": 1} | changes),
        )
        row = self.world.submit(job)
        self.jobs[tenant].append(row)
        return row

    def run(self, seconds: float, there: tuple[str, ...]) -> None:
        """Let time pass; who is there never runs out of waiting jobs."""
        end = self.world.now + seconds
        while self.world.now < end:
            for tenant in there:
                while self.waiting(tenant) < BACKLOG:
                    self.submit(tenant, steps=2 + len(self.jobs[tenant]) % 4)
            self.world.run_for(1.0)

    def waiting(self, tenant: str) -> int:
        return sum(row.state in (None, JobState.QUEUED) for row in self.jobs[tenant])

    def engine_s(self, begin: float, end: float) -> dict[str, float]:
        """Engine-seconds of each tenant between two times, from what was granted and released."""
        tenant_of = {row.plan.job_id: name for name, rows in self.jobs.items() for row in rows}
        held: dict[JobId, tuple[float, int]] = {}
        found = dict.fromkeys(ORGS, 0.0)
        for time, command in [*self.world.log, (end, None)]:
            if isinstance(command, GrantGang):
                held[command.job_id] = (time, command.engines)
            ended = list(held) if command is None else []
            if isinstance(command, ReleaseGang) and command.job_id in held:
                ended = [command.job_id]
            for job in ended:
                since, engines = held.pop(job)
                inside = max(min(time, end) - max(since, begin), 0.0)
                found[tenant_of[job]] += engines * inside
        return found


def shared_pool(**changes: object) -> Pool:
    tenants = tuple(TenantShare(ORGS[name], weight) for name, weight in WEIGHTS.items())
    numbers = {"engines": 8, "trainers": 8, "sandboxes": 40, "tenants": tenants} | changes
    return Pool(grading_reserve=1, **numbers)  # type: ignore[arg-type]


def test_engine_seconds_of_gangs_follow_the_weights_while_all_wait() -> None:
    tenants = Tenants(shared_pool())
    tenants.run(150.0, there=("one", "two", "five"))
    seconds = tenants.engine_s(30.0, 150.0)
    for name, weight in WEIGHTS.items():
        fair = sum(seconds.values()) * weight / 8
        assert seconds[name] == pytest.approx(fair, rel=0.05), seconds
    assert sum(seconds.values()) >= 0.99 * 8 * 120.0


def test_engines_of_a_tenant_that_is_away_are_lent_and_come_back_as_jobs_end() -> None:
    tenants = Tenants(shared_pool())
    tenants.run(60.0, there=("one", "two"))
    lent = tenants.engine_s(20.0, 60.0)
    assert lent["one"] + lent["two"] >= 0.99 * 8 * 40.0
    longest = max(row_s for row_s in job_lengths(tenants))
    tenants.run(longest + 60.0, there=("one", "two", "five"))
    begin = 60.0 + longest
    seconds = tenants.engine_s(begin, begin + 60.0)
    assert seconds["five"] / sum(seconds.values()) >= 5 / 8 * 0.95


def test_a_guaranteed_job_gets_its_gang_from_borrowers_who_go_on_later() -> None:
    shares = (TenantShare(ORGS["one"], engines=2, trainers=2, sandboxes=4),)
    tenants = Tenants(shared_pool(engines=3, trainers=3, tenants=shares))
    borrowers = [tenants.submit("five", steps=60) for _ in range(3)]
    tenants.world.run_for(10.0)
    assert [row.state for row in borrowers] == [JobState.RUNNING] * 3
    owner = tenants.submit("one", engines_min=2, engines_max=2)
    tenants.world.run(lambda: owner.state is JobState.SUCCEEDED, within_s=300.0)
    yielded = [row for row in borrowers if JobState.PAUSING in row.states]
    assert len(yielded) == 2
    tenants.world.run(lambda: all(row.state is JobState.SUCCEEDED for row in borrowers))
    for row in borrowers:
        assert sorted(row.steps) == list(range(1, 61))
        assert row.states.count(JobState.PAUSING) <= 1


def test_one_that_never_fits_evicts_nobody_and_the_next_that_fits_runs() -> None:
    """The second row of F19: a pool of three; jobs of one, of four, of three engines."""
    shares = (TenantShare(ORGS["two"], engines=4, trainers=1, sandboxes=4),)
    tenants = Tenants(shared_pool(engines=3, trainers=3, tenants=shares))
    small = tenants.submit("one", steps=40)
    tenants.world.run_for(5.0)
    never = tenants.submit("two", engines_min=4, engines_max=4)
    large = tenants.submit("two", engines_min=3, engines_max=3)
    tenants.world.run(lambda: large.state is JobState.SUCCEEDED, within_s=300.0)
    tenants.world.run(lambda: small.state is JobState.SUCCEEDED, within_s=300.0)
    assert small.states.count(JobState.PAUSING) == 1
    assert never.state is JobState.QUEUED
    assert never.reason == "never_fits: needs 4 engines, the pool has 3"
    assert never.queue_position is None


def test_a_leader_that_restarts_while_a_borrower_yields_lets_it_go_on_later() -> None:
    shares = (TenantShare(ORGS["one"], engines=1, trainers=1, sandboxes=4),)
    tenants = Tenants(shared_pool(engines=1, trainers=1, tenants=shares))
    borrower = tenants.submit("five", steps=30)
    tenants.world.run_for(5.0)
    owner = tenants.submit("one")
    tenants.world.run(lambda: borrower.state is JobState.PAUSING, within_s=60.0)
    tenants.world.restart_leader()
    tenants.world.run(lambda: borrower.state is JobState.SUCCEEDED, within_s=300.0)
    assert owner.state is JobState.SUCCEEDED
    assert borrower.desired is Desired.RUN


def job_lengths(tenants: Tenants) -> list[float]:
    """Seconds from grant to release of each job that ended."""
    began: dict[JobId, float] = {}
    found = []
    for time, command in tenants.world.log:
        if isinstance(command, GrantGang):
            began[command.job_id] = time
        elif isinstance(command, ReleaseGang) and command.job_id in began:
            found.append(time - began[command.job_id])
    return found
