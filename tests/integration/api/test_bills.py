"""The bill of a job as the API shows it, computed from rows and then settled in the ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from domain.billing import Bucket, Resource
from stores import tables as t
from stores.system import bills
from tests.integration.api.filled import Filled
from tests.integration.api.world import Tenant, World
from venusrl.client import NotFound

START = datetime(2026, 1, 1, tzinfo=UTC)


class Held(Filled):
    """The filled job with 100 s of an engine (10 s loading), 50 s of a trainer, two sandboxes."""

    def __init__(self, tenant: Tenant) -> None:
        """Write the rows."""
        super().__init__(tenant)
        self.host("engine", 100.0, ready_after_s=10.0)
        self.host("trainer", 50.0, ready_after_s=0.0)
        self.hop(0, engine_s=20.0, tool_wait_s=5.0)
        self.hop(2, engine_s=10.0, tool_wait_s=0.0)
        self.hop(3, engine_s=30.0, tool_wait_s=0.0)
        self.sandbox(0, 1, 8.0)
        self.sandbox(1, 1, 3.0)
        self.sandbox(1, 2, 4.0)
        self.world.change(t.rollout, self.rollouts[1], **{"try": 2})
        self.world.add(
            t.rollout_try, rollout_id=self.rollouts[1], end="sandbox_lost", cause="killed",
            counts=True, hop=1, **{"try": 1},
        )  # fmt: skip
        for name, value in (("trainer_busy_s", 12.0), ("checkpoint_s", 2.0)):
            self.world.add(
                t.metric, attempt_id=self.job["attempt_id"], step=1, name=name, value=value
            )

    def host(self, kind: str, seconds: float, ready_after_s: float) -> None:
        """A host that was held once."""
        attempt = self.job["attempt_id"]
        self.world.add(
            t.host_interval, host_id=f"host_{attempt}_{kind}", number=1, kind=kind, epoch=1,
            job_id=self.job["id"], attempt_id=attempt, owner="k", opened="declared",
            started_at=START, ready_at=START + timedelta(seconds=ready_after_s),
            ended_at=START + timedelta(seconds=seconds),
        )  # fmt: skip

    def hop(self, index: int, engine_s: float, tool_wait_s: float) -> None:
        """A placement that ended."""
        self.world.add(
            t.rollout_hop, rollout_id=self.rollouts[index], hop=1, host_id="host_x",
            attempt_id=self.job["attempt_id"], ended_at=START, engine_s=engine_s,
            tool_wait_s=tool_wait_s, **{"try": 1},
        )  # fmt: skip

    def sandbox(self, index: int, number: int, seconds: float) -> None:
        """A try's room."""
        self.world.add(
            t.sandbox_interval, rollout_id=self.rollouts[index], purpose="agent", number=number,
            attempt_id=self.job["attempt_id"], host_id="host_node0", epoch=1, started_at=START,
            ended_at=START + timedelta(seconds=seconds),
        )  # fmt: skip


@pytest.fixture
def held(tenant: Tenant) -> Held:
    """A job that held hosts and sandboxes."""
    return Held(tenant)


WANTED = {
    ("engine", "trained"): 20.0,
    ("engine", "truncated"): 10.0,
    ("engine", "evaluation"): 30.0,
    ("engine", "starting"): 10.0,
    ("engine", "idle_by_tool"): 5.0,
    ("engine", "idle_by_scheduler"): 25.0,
    ("trainer", "trained"): 12.0,
    ("trainer", "checkpointing"): 2.0,
    ("trainer", "idle_by_scheduler"): 36.0,
    ("sandbox", "trained"): 12.0,
    ("sandbox", "infrastructure"): 3.0,
}


def shown(tenant: Tenant, job: str) -> tuple[dict[tuple[str, str], float], Any]:
    with tenant.sdk() as client:
        bill = client.jobs.bill(job)
    seconds = {(one.resource, one.bucket): one.seconds for one in bill.lines}
    assert list(seconds) == [(r.value, b.value) for r in Resource for b in Bucket]
    return {place: value for place, value in seconds.items() if value}, bill


def test_every_second_is_in_the_bucket_of_its_rollouts_fate(tenant: Tenant, held: Held) -> None:
    seconds, bill = shown(tenant, held.job["id"])
    assert seconds == pytest.approx(WANTED)
    assert bill.wall_s == pytest.approx({"engine": 100.0, "trainer": 50.0, "sandbox": 15.0})
    assert not bill.is_final


def test_lines_count_and_link_the_rollouts_of_their_bucket(tenant: Tenant, held: Held) -> None:
    _, bill = shown(tenant, held.job["id"])
    (line,) = [one for one in bill.lines if (one.resource, one.bucket) == ("engine", "truncated")]
    assert line.rollouts == 1
    with tenant.http() as http:
        found = http.get(line.rollouts_url).json()["data"]
    assert [one["id"] for one in found] == [held.rollouts[2]]


def test_an_ended_attempt_is_settled_once_and_stays_as_it_was(
    world: World, tenant: Tenant, held: Held
) -> None:
    assert world.run(bills.settle) == []
    world.change(t.attempt, held.job["attempt_id"], ended_at=START)
    assert world.run(bills.settle) == [held.job["attempt_id"]]
    assert world.run(bills.settle) == []
    before, bill = shown(tenant, held.job["id"])
    assert bill.is_final
    held.host("engine1", 500.0, ready_after_s=0.0)
    assert shown(tenant, held.job["id"])[0] == before == pytest.approx(WANTED)


def test_nothing_is_settled_while_something_is_held(
    world: World, tenant: Tenant, held: Held
) -> None:
    world.change(t.attempt, held.job["attempt_id"], ended_at=START)
    world.add(
        t.sandbox_interval, rollout_id=held.rollouts[3], purpose="grader", number=1,
        attempt_id=held.job["attempt_id"], host_id="host_node0", epoch=1, started_at=START,
    )  # fmt: skip
    assert world.run(bills.settle) == []
    assert shown(tenant, held.job["id"])[0]["sandbox", "evaluation"] > 0.0


def test_a_fate_that_never_comes_holds_a_bill_back_for_a_while_only(
    world: World, tenant: Tenant, held: Held
) -> None:
    world.change(t.rollout_group, held.train, disposition="pending")
    world.change(t.attempt, held.job["attempt_id"], ended_at=datetime.now(UTC))
    assert world.run(bills.settle) == []
    world.change(t.attempt, held.job["attempt_id"], ended_at=datetime.now(UTC) - bills.FATES_WITHIN)
    assert world.run(bills.settle) == [held.job["attempt_id"]]


def test_another_tenants_bill_is_not_found(world: World, held: Held) -> None:
    with world.tenant("another").sdk() as client, pytest.raises(NotFound):
        client.jobs.bill(held.job["id"])
