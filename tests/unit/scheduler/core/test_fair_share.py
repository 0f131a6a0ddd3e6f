"""Dominant shares, guarantees, and the order of tenants for gangs and sandboxes."""

from domain.ids import OrganizationId
from domain.plan import TenantShare
from scheduler.core.fair_share import (
    Amounts,
    Tenancy,
    dominant_share,
    is_guaranteed,
    observe,
    sandbox_key,
    share_of,
)
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench

A, B = OrganizationId("org_a"), OrganizationId("org_b")


def test_the_dominant_share_is_the_largest_of_what_the_pool_declares() -> None:
    capacity = Amounts(trainers=4, engines=10, sandboxes=100)
    assert dominant_share(Amounts(trainers=1, engines=1, sandboxes=40), capacity) == 0.4
    assert dominant_share(Amounts(kv_tokens=9e9, sandbox_bytes=9e9), capacity) == 0.0
    assert dominant_share(Amounts(), Amounts()) == 0.0


def test_amounts_add_up_resource_by_resource() -> None:
    both = Amounts(1, 2, 3, 4, 5) + Amounts(10, 20, 30, 40, 50)
    assert both == Amounts(11, 22, 33, 44, 55)


def test_a_guarantee_holds_for_every_resource_of_a_gang_at_once() -> None:
    share = TenantShare(A, engines=2, trainers=1, sandboxes=8)
    assert is_guaranteed(share, Amounts(trainers=1, engines=2, sandboxes=8))
    assert not is_guaranteed(share, Amounts(trainers=2, engines=2, sandboxes=8))
    assert not is_guaranteed(share_of(pool(), A), Amounts(trainers=1))


def test_what_a_tenant_held_is_charged_over_its_weight() -> None:
    tenancy, shared = Tenancy(), pool(tenants=(TenantShare(A, weight=4.0),))
    observe(tenancy, shared, {A: 0.5, B: 0.5}, [A, B], 0.0)
    observe(tenancy, shared, {A: 0.5}, [A, B], 100.0)
    attained = {name: one.attained(100.0) for name, one in tenancy.ledger.accounts.items()}
    assert attained == {A: 12.5, B: 50.0}


def test_a_tenant_that_did_not_wait_gets_no_credit() -> None:
    tenancy = Tenancy()
    observe(tenancy, pool(), {A: 1.0}, [A], 0.0)
    observe(tenancy, pool(), {A: 1.0}, [A, B], 100.0)
    assert tenancy.ledger.accounts[B].attained(100.0) == 100.0


def test_sandboxes_go_to_the_tenant_that_holds_least_for_its_weight() -> None:
    tenants = (TenantShare(A, weight=3.0),)
    bench = Bench(pool(engines=3, trainers=3, sandboxes=64, tenants=tenants))
    for name, organization in (("a", A), ("b", B), ("c", B)):
        bench.submit(plan(name, organization_id=organization, engines_max=1))
    for name, held in (("a", 8), ("b", 0), ("c", 3)):
        bench.job(name).sandboxes = held
    jobs = sorted(map(bench.job, "abc"), key=sandbox_key(bench.core.state))
    assert [job.plan.job_id for job in jobs] == ["job_a", "job_b", "job_c"]
    bench.job("a").sandboxes = 12
    jobs = sorted(map(bench.job, "abc"), key=sandbox_key(bench.core.state))
    assert [job.plan.job_id for job in jobs] == ["job_b", "job_c", "job_a"]


def test_sandboxes_are_compared_in_bytes_where_the_pool_knows_them() -> None:
    bench = Bench(pool(engines=3, trainers=3, sandbox_bytes=1000))
    bench.submit(plan("a", organization_id=A, sandbox_bytes=100, engines_max=1))
    bench.submit(plan("b", organization_id=B, sandbox_bytes=1, engines_max=1))
    bench.job("a").sandboxes, bench.job("b").sandboxes = 1, 50
    jobs = sorted(map(bench.job, "ab"), key=sandbox_key(bench.core.state))
    assert [job.plan.job_id for job in jobs] == ["job_b", "job_a"]
