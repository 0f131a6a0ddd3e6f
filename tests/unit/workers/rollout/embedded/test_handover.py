"""Pages in and out of a core stepped by hand: the accounting stays whole, the answers stay the same."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from domain.engine import GenRequest, GenResult, KvMode
from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra import failpoints
from tests.support.engines import request
from tests.support.failpoints import ArmedFailpoints
from tests.unit.workers.rollout.embedded.cores import (
    PACKED,
    Answers,
    assert_whole,
    build,
    drain,
    submit,
    turn,
)
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.handover import arriving, layout_of, leaving
from workers.rollout.embedded.tiers.stores import FetchFailure, TierSizes
from workers.rollout.kv_transfer.pages import KvRun
from workers.rollout.kv_transfer.transfer import KvTransfer

OPENING = tuple(1 + n % 15 for n in range(38))
ROLLOUT = RolloutId("ro_a")


def moved(transfer: KvTransfer, source: Core, rollout: RolloutId = ROLLOUT) -> KvTicket:
    run, content = leaving(source, rollout)
    return transfer.export(run, content)


def arrives(core: Core, transfer: KvTransfer, asked: GenRequest, answers: Answers) -> int:
    """Submit a request with its ticket, as the engine's thread does."""
    ticket = asked.kv_source
    assert ticket is not None
    layout = layout_of(core.keys.arena)
    sha, tenant = ticket.weights_sha, asked.tenant
    wanted = KvRun(asked.rollout_id, asked.token_ids, sha, layout, tenant=tenant)
    content = transfer.look(ticket, wanted)
    submit(core, asked, answers)
    return arriving(core, asked, content)


def next_turn(first: GenResult, ticket: KvTicket | None, name: str = "a") -> GenRequest:
    ids = (*OPENING, *first.token_ids, 3, 4)
    return replace(request(name, ids, temperature=0.0, request_id=f"{name}_2"), kv_source=ticket)


@pytest.fixture
def transfer() -> Iterator[KvTransfer]:
    one = KvTransfer(time.time)
    yield one
    one.close()


def test_whole_pages_arrive_are_found_and_counted_once(transfer: KvTransfer) -> None:
    source, target = build(), build()
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    ticket = moved(transfer, source)
    assert ticket.tokens == 32
    answers: Answers = {}
    assert arrives(target, transfer, next_turn(first, ticket), answers) == 32
    assert_whole(target)
    drain(target)
    assert target.counters.cached_tokens == 32
    here: Answers = {}
    submit(source, next_turn(first, None), here)
    drain(source)
    assert answers["a_2"].token_ids == here["a_2"].token_ids
    assert answers["a_2"].logprobs == pytest.approx(here["a_2"].logprobs, abs=1e-5)


def crowded_out(tiers: TierSizes) -> tuple[Core, GenResult]:
    """A core that pushed all pages of a rollout out to its tiers, and the rollout's turn."""
    core = build(pages=6, tiers=tiers)
    first = turn(core, "a", ids=OPENING, temperature=0.0)
    turn(core, "big", ids=tuple(2 + n % 9 for n in range(60)), max_tokens=36)
    assert core.keys.tiers is not None
    while core.keys.tiers.is_open:
        core.keys.collect(1.0)
    return core, first


@pytest.mark.parametrize("tiers", [TierSizes(host_pages=16), TierSizes(disk_pages=16)])
def test_pages_in_outer_tiers_leave_as_well(transfer: KvTransfer, tiers: TierSizes) -> None:
    source, first = crowded_out(tiers)
    target = build()
    path = source.keys.table.tree.trajectories[ROLLOUT].path
    assert any(node.page is None for node in path[:2])
    answers: Answers = {}
    try:
        assert arrives(target, transfer, next_turn(first, moved(transfer, source)), answers) == 32
        assert_whole(source)
        drain(target)
        here: Answers = {}
        submit(source, next_turn(first, None), here)
        drain(source)
        assert answers["a_2"].token_ids == here["a_2"].token_ids
    finally:
        source.close()


def test_a_page_that_its_tier_cannot_give_ends_what_leaves(
    transfer: KvTransfer, tmp_path: Path
) -> None:
    source, _ = crowded_out(TierSizes(host_pages=16))
    points = ArmedFailpoints(tmp_path / "failpoints")
    points.arm("engine.kv.fetch=drop,times=*")
    failpoints.configure("test", points.environ)
    try:
        near = [n for n in source.keys.table.tree.trajectories[ROLLOUT].path if n.is_usable]
        if near:
            assert moved(transfer, source).tokens == 16 * len(near)
        else:
            with pytest.raises(KvRefused, match="no_pages"):
                leaving(source, ROLLOUT)
        assert source.keys.tiers is not None
        assert source.keys.tiers.counters.fetch_failures[FetchFailure.SHORT] == 1
        assert_whole(source)
    finally:
        source.close()
        failpoints.configure("test", {})


def test_members_that_follow_share_what_came_with_the_first(transfer: KvTransfer) -> None:
    source, target = build(), build()
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    turn(source, "b", ids=OPENING, temperature=0.0)
    answers: Answers = {}
    assert arrives(target, transfer, next_turn(first, moved(transfer, source)), answers) == 32
    sibling = moved(transfer, source, RolloutId("ro_b"))
    assert arrives(target, transfer, next_turn(first, sibling, "b"), answers) == 0
    assert_whole(target)
    drain(target)
    assert len(answers) == 2


def test_a_target_without_room_refuses_and_its_accounting_stays_whole(
    transfer: KvTransfer,
) -> None:
    source, target = build(), build(pages=4)
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    answers: Answers = {}
    submit(target, request("busy", OPENING[::-1], max_tokens=20), answers)
    target.step()
    with pytest.raises(KvRefused) as caught:
        arrives(target, transfer, next_turn(first, moved(transfer, source)), answers)
    assert caught.value.reason is KvFailure.NO_ROOM
    assert_whole(target)
    drain(target)
    assert set(answers) == {"req_busy", "a_2"}


def test_keys_of_former_weights_neither_leave_nor_come_in(transfer: KvTransfer) -> None:
    source, target = build(), build()
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    ticket = moved(transfer, source)
    for core in (source, target):
        core.swap_weights(PACKED, 1, "v1")
        core.drop_stale_keys(KvMode.KEEP)
    with pytest.raises(KvRefused) as left:
        leaving(source, ROLLOUT)
    assert left.value.reason is KvFailure.NO_PAGES
    with pytest.raises(KvRefused) as came:
        arrives(target, transfer, next_turn(first, ticket), {})
    assert came.value.reason is KvFailure.OTHER_WEIGHTS
    drain(target)
    assert target.counters.cached_tokens == 0


def test_another_tenants_context_finds_nothing_of_what_came(transfer: KvTransfer) -> None:
    source, target = build(), build()
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    answers: Answers = {}
    arrives(target, transfer, next_turn(first, moved(transfer, source)), answers)
    drain(target)
    cached = target.counters.cached_tokens
    other = replace(next_turn(first, None, "b"), tenant="org_1")
    submit(target, other, answers)
    drain(target)
    assert target.counters.cached_tokens == cached
    assert answers["b_2"].token_ids == answers["a_2"].token_ids


def test_pages_of_another_tenant_are_not_taken_in(transfer: KvTransfer) -> None:
    source, target = build(), build()
    first = turn(source, "a", ids=OPENING, temperature=0.0)
    asked = replace(next_turn(first, moved(transfer, source)), tenant="org_1")
    with pytest.raises(KvRefused) as came:
        arrives(target, transfer, asked, {})
    assert came.value.reason is KvFailure.OTHER_TENANT
    submit(target, asked, {})
    content = transfer.look(moved(transfer, source), leaving(source, ROLLOUT)[0])
    with pytest.raises(KvRefused) as late:
        arriving(target, asked, content)
    assert late.value.reason is KvFailure.OTHER_TENANT
    drain(target)
    assert target.counters.cached_tokens == 0


@pytest.mark.parametrize("seed", range(5))
def test_any_moves_between_two_full_engines_leave_both_whole(
    seed: int, transfer: KvTransfer
) -> None:
    rng, cores, answers = Random(seed), (build(pages=9), build(pages=9)), Answers()
    contexts = {f"m{n}": [*OPENING[: rng.randrange(4, 30)]] for n in range(4)}
    for number in range(60):
        name = rng.choice(sorted(contexts))
        source, target = rng.sample(cores, 2)
        asked = request(
            name,
            contexts[name],
            temperature=0.0,
            max_tokens=rng.randrange(1, 6),
            request_id=f"{name}_{number}",
        )
        _move(transfer, (source, target), asked, answers)
        assert_whole(source)
        for _ in range(rng.randrange(3)):
            target.step()
            assert_whole(target)
        drain(target)
        contexts[name] += [*answers[asked.request_id].token_ids, 1 + rng.randrange(15)]
        if len(contexts[name]) > 70:
            contexts[name] = contexts[name][:5]
    assert transfer.counts["exports"] > 5
    cold = build(pages=9)
    last = request("cold", contexts["m0"], temperature=0.0, request_id="cold")
    for core in (*cores, cold):
        answers.pop("cold", None)
        submit(core, last, answers)
        drain(core)
        contexts.setdefault("cold", [*answers["cold"].token_ids])
        assert contexts["cold"] == [*answers["cold"].token_ids]


def _move(
    transfer: KvTransfer, cores: tuple[Core, Core], asked: GenRequest, answers: Answers
) -> None:
    """The source lets go; the target takes what came, or computes."""
    source, target = cores
    try:
        ticket = moved(transfer, source, asked.rollout_id)
        source.release(asked.rollout_id)
        arrives(target, transfer, replace(asked, kv_source=ticket), answers)
    except KvRefused:
        if asked.request_id not in target.waiting:
            submit(target, asked, answers)
