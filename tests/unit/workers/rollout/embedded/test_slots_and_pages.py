"""Slots and pages under pressure: who has them changes nothing of what is sampled."""

import itertools
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from domain.engine import (
    EngineRefused,
    Finish,
    GenRequest,
    KvMode,
    Refusal,
    RequestId,
)
from domain.ids import RolloutId
from infra import failpoints
from kv.ranks import RankClass, compose
from kv.rules import PLAIN, RANKED, Gaps, KvRules
from tests.support.engines import decoder, reference_logprobs, request
from tests.support.failpoints import ArmedFailpoints
from tests.unit.workers.rollout.embedded.cores import (
    LONG,
    Answers,
    assert_right,
    assert_whole,
    build,
    drain,
    pages_of,
    submit,
    turn,
)
from workers.rollout.embedded import passes
from workers.rollout.embedded.admission import Decision
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.key_stats import key_stats
from workers.rollout.embedded.packing import pack
from workers.rollout.embedded.pages.nodes import Node, Place
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.tiers import outer
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes


def play_streams(core: Core, streams: int, turns: int, ranks: Random) -> Answers:
    """So many multi-turn rollouts at once, greedy; the answers by request."""
    answers: Answers = {}
    asked: dict[str, GenRequest] = {}
    for number in range(turns):
        for stream in range(streams):
            before = answers.get(f"{stream}.{number - 1}")
            ids: tuple[int, ...] = (stream % 4, *LONG[:12], stream % 17)
            if before is not None:
                old = asked[f"{stream}.{number - 1}"].token_ids
                ids = (*old, *before.token_ids, stream % 5, number)
            one = request(
                f"{stream}.{number}",
                ids,
                request_id=f"{stream}.{number}",
                rollout_id=f"ro_{stream}",
                rank=ranks.randrange(40),
                temperature=0.0,
                max_tokens=8 + stream % 9,
            )
            asked[one.request_id] = one
            submit(core, one, answers)
            core.step()
        drain(core)
    assert_right(asked, answers)
    return answers


NORMAL = compose(RankClass.NORMAL, 1, 0)
CRITICAL = compose(RankClass.CRITICAL, 1, 0)


def token_ids(answers: Answers) -> dict[str, tuple[int, ...]]:
    return {name: result.token_ids for name, result in answers.items()}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[int, ...]]:
    """The same streams with a slot and pages for each."""
    return token_ids(play_streams(build(slots=32, pages=400), 32, 3, Random(1)))


@pytest.mark.parametrize(
    ("slots", "pages", "tiers", "rules"),
    [
        (4, 400, NO_TIERS, RANKED),
        (32, 32, NO_TIERS, RANKED),
        (32, 32, NO_TIERS, PLAIN),
        (8, 32, TierSizes(host_pages=64), RANKED),
        (8, 32, TierSizes(disk_pages=64), RANKED),
        (8, 32, TierSizes(host_pages=16, disk_pages=64), RANKED),
    ],
)
def test_answers_are_the_same_whatever_was_evicted_offloaded_or_preempted(
    slots: int,
    pages: int,
    tiers: TierSizes,
    rules: KvRules,
    alone: dict[str, tuple[int, ...]],
) -> None:
    core = build(slots, pages, tiers=tiers, rules=rules)
    try:
        assert token_ids(play_streams(core, 32, 3, Random(2))) == alone
        if slots < 32 and rules is RANKED:
            assert core.counters.preemptions > 0
        if pages == 32:
            assert sum(core.keys.table.tree.evicted.values()) > 0
        if core.keys.tiers is not None:
            moved = core.keys.tiers.counters.bytes_moved
            assert any(target is Place.DEVICE for _, target in moved)
    finally:
        core.close()


def test_a_better_turn_takes_a_slot_in_the_next_step_and_the_loser_keeps_its_keys() -> None:
    core = build(slots=1)
    answers: Answers = {}
    asked = {
        "worse": request("w", LONG, request_id="worse", rank=5, max_tokens=30),
        "better": request("b", request_id="better", rank=1, max_tokens=4),
    }
    submit(core, asked["worse"], answers)
    for _ in range(3):
        core.step()
    submit(core, asked["better"], answers)
    core.step()
    assert core.rows.running[0].ticket.request.request_id == "better"
    assert core.counters.sampled_tokens == 4, "its first token came in that step"
    prefilled = core.counters.prefilled_tokens
    drain(core)
    assert core.counters.prefilled_tokens == prefilled
    assert (core.counters.preemptions, core.keys.recomputed_tokens) == (1, 0)
    assert_right(asked, answers)


def test_a_turn_of_equal_rank_or_of_another_tenant_takes_no_slot() -> None:
    core = build(slots=1)
    answers: Answers = {}
    submit(core, request("a", rank=5, max_tokens=6), answers)
    core.step()
    submit(core, request("b", rank=5), answers)
    submit(core, replace(request("c", rank=1), tenant="org_1"), answers)
    core.step()
    assert core.rows.running[0].ticket.request.request_id == "req_a"
    drain(core)
    assert core.counters.preemptions == 0


def test_a_new_rank_takes_a_slot_from_a_running_turn() -> None:
    core = build(slots=1)
    answers: Answers = {}
    for name, rank in (("a", 2), ("b", 3)):
        submit(core, request(name, rank=rank, max_tokens=9), answers)
    core.step()
    core.set_rank({RolloutId("ro_b"): 1})
    core.step()
    assert core.rows.running[0].ticket.request.request_id == "req_b"
    drain(core)


def crowd(core: Core, count: int, answers: Answers) -> dict[str, GenRequest]:
    """So many turns of the worst class that have nothing in common and run for long."""
    asked: dict[str, GenRequest] = {}
    for number in range(count):
        one = request(f"w{number}", (number, *LONG), request_id=f"w{number}", rank=NORMAL + number)
        asked[one.request_id] = replace(one, sampling=replace(one.sampling, max_tokens=40))
        submit(core, asked[one.request_id], answers)
        core.step()
    return asked


@pytest.mark.parametrize("tiers", [NO_TIERS, TierSizes(host_pages=16)], ids=["no tiers", "host"])
def test_a_turn_of_a_better_class_takes_the_room_of_worse_ones_though_slots_are_free(
    tiers: TierSizes,
) -> None:
    core = build(slots=8, pages=16, tiers=tiers)
    answers: Answers = {}
    try:
        asked = crowd(core, 3, answers)
        assert (core.active, len(core.waiting)) == (3, 0)
        asked["b"] = request("b", (9, *LONG), request_id="b", rank=CRITICAL, max_tokens=40)
        submit(core, asked["b"], answers)
        sampled = core.counters.sampled_tokens
        core.step()
        running = [one.ticket.request.request_id for one in core.rows.running]
        assert running == ["w0", "w1", "b"]
        assert core.counters.preemptions == 1
        assert core.counters.sampled_tokens == sampled + 3, "its first token came in that step"
        drain(core)
    finally:
        core.close()
    assert_right(asked, answers)


def test_a_turn_of_the_same_class_takes_no_room_of_one_that_runs() -> None:
    core = build(slots=8, pages=16)
    answers: Answers = {}
    asked = crowd(core, 3, answers)
    asked["b"] = request("b", (9, *LONG), request_id="b", rank=NORMAL - 1, max_tokens=40)
    submit(core, asked["b"], answers)
    for _ in range(3):
        core.step()
    assert (core.counters.preemptions, list(core.waiting)) == (0, ["b"])
    drain(core)
    assert_right(asked, answers)


def test_several_better_turns_that_come_at_once_take_as_many_slots_in_one_step() -> None:
    core = build(slots=4, pages=60)
    answers: Answers = {}
    asked = crowd(core, 4, answers)
    for number in range(3):
        name = f"b{number}"
        asked[name] = request(name, (9 + number, *LONG), request_id=name, rank=CRITICAL + number)
        submit(core, asked[name], answers)
    core.step()
    running = {one.ticket.request.request_id for one in core.rows.running}
    assert running == {"w0", "b0", "b1", "b2"}
    assert core.counters.preemptions == 3
    drain(core)
    assert_right(asked, answers)


def test_nobody_gives_up_a_slot_where_that_is_not_enough() -> None:
    core = build(slots=8, pages=16)
    answers: Answers = {}
    for name in ("o1", "o2"):
        other = request(name, (len(answers), *LONG, int(name[1])), rank=NORMAL, max_tokens=60)
        submit(core, replace(other, tenant="org_1"), answers)
        core.step()
    submit(core, request("w", LONG, rank=NORMAL, max_tokens=8), answers)
    core.step()
    assert core.active == 3
    submit(core, request("big", (9, *LONG), rank=CRITICAL, max_tokens=60), answers)
    core.step()
    assert (core.active, core.counters.preemptions) == (3, 0)
    drain(core)
    assert len(answers) == 4


def test_when_pages_run_out_the_worst_ranked_turn_gives_up_its_slot() -> None:
    core = build(slots=3, pages=6)
    answers: Answers = {}
    asked = {}
    for name, rank in (("a", 1), ("b", 2), ("c", 3)):
        one = request(name, (ord(name) % 17, *LONG[:14]), request_id=name, rank=rank)
        asked[name] = replace(one, sampling=replace(one.sampling, max_tokens=60))
        submit(core, asked[name], answers)
    drain(core)
    assert list(answers) == ["a", "b", "c"]
    assert_right(asked, answers)


def test_a_context_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    core = build(slots=2, pages=3)
    with pytest.raises(EngineRefused) as refused:
        submit(core, request("big", LONG, max_tokens=30), {})
    assert refused.value.reason is Refusal.CONTEXT_OVERFLOW
    assert turn(core, "small").finish is Finish.LENGTH


def test_members_of_a_group_compute_their_prompt_once() -> None:
    core = build(slots=4)
    answers: Answers = {}
    asked = {}
    for member in range(4):
        name = str(member)
        asked[name] = request(name, (*LONG, 1, 2, member), request_id=name, seed=member)
        submit(core, asked[name], answers)
    drain(core)
    assert core.counters.prefilled_tokens == 32
    assert [answers[str(m)].cached_tokens for m in range(4)] == [0, 32, 32, 32]
    assert_right(asked, answers)


def test_the_next_turn_goes_on_in_the_last_page_of_its_rollout_and_takes_no_other() -> None:
    core = build(slots=1)
    first = turn(core, "a", ids=LONG, rollout_id="a")
    before = core.keys.table.tree.trajectories[RolloutId("a")].path
    ids = (*LONG, *first.token_ids, 1)
    turn(core, "b", ids=ids, rollout_id="a", max_tokens=2)
    after = core.keys.table.tree.trajectories[RolloutId("a")].path
    assert [node.page for node in after] == [node.page for node in before]


def test_two_tenants_with_the_same_prompt_share_nothing() -> None:
    core = build(slots=1)
    answers: Answers = {}
    for tenant in ("org_a", "org_b", "org_a"):
        number = f"{tenant}.{len(answers)}"
        one = request("x", (*LONG, 1, 2, 3), request_id=number, rollout_id=number)
        submit(core, replace(one, tenant=tenant), answers)
        drain(core)
    assert [a.cached_tokens for a in answers.values()] == [0, 0, 32]


def test_an_aborted_turn_that_had_lost_its_slot_gives_what_it_had_sampled() -> None:
    core = build(slots=1)
    answers: Answers = {}
    submit(core, request("worse", rank=5, max_tokens=30), answers)
    for _ in range(3):
        core.step()
    submit(core, request("better", rank=1, max_tokens=30), answers)
    core.step()
    (result,) = core.abort([RequestId("req_worse")], "aborted")
    assert len(result.token_ids) == 3
    assert_whole(core)
    drain(core)


@pytest.mark.parametrize(
    "point",
    [
        "engine.kv.fetch=raise:os,times=*",
        "engine.kv.fetch=drop,times=*",
        "engine.kv.store=drop,times=*",
        "engine.kv.store=raise:os,times=*",
        "engine.kv.fetch=sleep:0.02,times=*",
    ],
)
def test_answers_are_the_same_when_no_page_comes_back(
    point: str, alone: dict[str, tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer, "FETCH_LATE_S", 0.01)
    points = ArmedFailpoints(tmp_path / "failpoints")
    points.arm(point)
    failpoints.configure("test", points.environ)
    core = build(8, 32, time.monotonic, TierSizes(host_pages=16, disk_pages=64, folder=tmp_path))
    try:
        assert token_ids(play_streams(core, 32, 3, Random(2))) == alone
        assert core.keys.tiers is not None
        counters = core.keys.tiers.counters
        assert counters.store_failures or sum(counters.fetch_failures.values())
        assert core.keys.recomputed_tokens > 0
    finally:
        core.close()
        failpoints.configure("test", {})


@pytest.mark.parametrize("kv", list(KvMode))
def test_a_turn_without_a_slot_goes_on_over_an_update_like_one_that_runs(kv: KvMode) -> None:
    other = decoder(1)
    core = build(slots=1)
    answers: Answers = {}
    worse = request("w", LONG, request_id="worse", rank=5, max_tokens=40)
    submit(core, worse, answers)
    for _ in range(20):
        core.step()
    submit(core, request("b", request_id="better", rank=1, max_tokens=4), answers)
    core.step()
    core.swap_weights(pack(other.config, other.state_dict(), torch.device("cpu")), 1, "v1")
    core.drop_stale_keys(kv)
    assert_whole(core)
    prefilled = core.counters.prefilled_tokens
    drain(core)
    spans = [(span.start, span.stop, span.version) for span in answers["worse"].version_spans]
    assert spans == [(0, 20, 0), (20, 40, 1)]
    computed = core.counters.prefilled_tokens - prefilled
    after = turn(core, "next", ids=(*LONG, 1, 2, 3))
    if kv is KvMode.KEEP:
        assert computed == after.cached_tokens == 0
    else:
        assert after.cached_tokens == 16, "computed by the new weights alone"
        ids = worse.token_ids + answers["worse"].token_ids
        expected = reference_logprobs(other, ids)[len(worse.token_ids) - 1 + 20 :]
        got = torch.tensor(answers["worse"].logprobs[20:])
        assert torch.allclose(got, expected, atol=2e-5, rtol=0)


def test_what_the_engine_counts_of_its_pages_adds_up() -> None:
    core = build(8, 32, tiers=TierSizes(host_pages=64))
    try:
        play_streams(core, 32, 3, Random(2))
        stats = key_stats(core.keys, core.counters.retractions)
    finally:
        core.close()
    assert stats.pages == {"device": 32, "host": 64, "disk": 0}
    assert sum(stats.evicted_pages.values()) == sum(stats.evicted_classes.values()) > 0
    left = stats.left_pages["host"]
    assert stats.moved_bytes["device_host"] <= left * core.keys.arena.shape.page_bytes
    assert stats.moved_bytes["host_device"] > 0
    assert stats.slot_starts["evaluation"] == 96 + core.counters.preemptions + stats.retractions
    assert stats.figures()["kv_pages_host"] == 64.0
    assert stats.hit_tokens["high_ref"] + stats.hit_tokens["low_ref"] > 0


def test_a_rank_orders_the_chunks_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PREFILL_TOKENS_MAX", 16)
    monkeypatch.setattr(passes, "PREFILL_CHUNK", 16)
    core = build(slots=2)
    answers: Answers = {}
    submit(core, request("worse", (1, *LONG), rank=2, max_tokens=2), answers)
    submit(core, request("better", (2, *LONG), rank=1, max_tokens=2), answers)
    drain(core)
    assert list(answers) == ["req_better", "req_worse"]


def test_under_a_time_to_live_a_gap_pins_its_pages_for_as_long_as_tools_take() -> None:
    now = 0.0
    core = build(slots=1, clock=lambda: now, rules=KvRules(gaps=Gaps.TTL))
    turn(core, "a", ids=LONG, rollout_id="a")
    assert core.keys.table.tree.trajectories[RolloutId("a")].kept_until == now + 2.0


@pytest.mark.parametrize("rules", [RANKED, PLAIN])
def test_no_page_of_a_turn_admitted_in_a_tick_is_evicted_in_that_tick(
    monkeypatch: pytest.MonkeyPatch, rules: KvRules
) -> None:
    core = build(8, 32, tiers=TierSizes(host_pages=64), rules=rules)
    choose, leave = core.keys.admission.decided, core.keys.table.tree._leave
    admitted: dict[int, str] = {}
    evicted = 0

    def admit(*given: Any) -> Decision:
        chosen = choose(*given)
        for ticket in chosen.admitted:
            trajectory = core.keys.table.tree.trajectories.get(ticket.request.rollout_id)
            for node in [] if trajectory is None else trajectory.path:
                admitted[node.key] = ticket.request.request_id
        return chosen

    def go(node: Node, reason: EvictReason) -> None:
        nonlocal evicted
        evicted += 1
        assert node.key not in admitted
        leave(node, reason)

    def step(admitting: bool = True) -> None:
        admitted.clear()
        Core.step(core, admitting)

    monkeypatch.setattr(core.keys.admission.__class__, "decided", lambda _, *given: admit(*given))
    monkeypatch.setattr(core.keys.table.tree, "_leave", go)
    monkeypatch.setattr(core, "step", step)
    try:
        play_streams(core, 32, 3, Random(5))
    finally:
        core.close()
    assert evicted > 50


def test_a_prompt_that_nobody_keeps_is_not_paid_for() -> None:
    """Two siblings hold 4 of 8 pages each, 3 of them in common; a better turn leaves room for 3.

    Neither of their last pages is kept then: the prompt under it is not.
    """
    core = build(2, 8, rules=replace(RANKED, gaps=Gaps.EVICTABLE))
    prompt = tuple(2 + n % 16 for n in range(48))
    for name in ("a", "b"):
        turn(
            core,
            name,
            ids=(*prompt, 1),
            rollout_id=name,
            max_tokens=4,
            rank=compose(RankClass.NORMAL, 0, 0),
        )
    tree = core.keys.table.tree
    assert [len(one.path) for one in tree.trajectories.values()] == [4, 4]
    assert tree.total - len(tree.free) == 5
    answers: Answers = {}
    submit(
        core,
        request("better", (19,) * 72, rank=compose(RankClass.CRITICAL, 1, 0), max_tokens=8),
        answers,
    )
    admission = core.keys.admission
    for ticket in core.waiting.values():
        core.keys.prepare(ticket, core.served_sha(ticket))
    decision = admission.decided(0.0, core.waiting.values(), (), 2)
    assert len(decision.admitted) == 1
    assert [tree.trajectories[RolloutId(name)].is_low for name in ("a", "b")] == [True, True]
    drain(core)
    assert "req_better" in answers


@pytest.mark.parametrize("has_own", [True, False], ids=["own page", "prompt alone"])
def test_a_turn_of_which_only_its_siblings_prompt_is_left_enters_with_room_beside_it(
    has_own: bool,
) -> None:
    """Of 11 pages a running turn holds 5, the next turn of a sibling needs the other 6.

    With one page of its own there it goes on; else it would be pushed out by the next page that the
    running one takes, and its whole context be computed for nothing.
    """
    core = build(3, 11)
    prompt, rank = tuple(2 + n % 16 for n in range(48)), compose(RankClass.NORMAL, 0, 0)
    contexts = {}
    for name, other in (("a", 1), ("b", 2)):
        ids = (*prompt, *(other,) * 17)
        found = turn(core, name, ids=ids, rollout_id=name, max_tokens=4, rank=rank)
        contexts[name] = (*ids, *found.token_ids)
    tree = core.keys.table.tree
    while len(path := tree.trajectories[RolloutId("b")].path) > 3 + has_own:
        tree._leave(path[-1], EvictReason.PROMPT)
    answers: Answers = {}
    submit(core, request("c", (19,) * 72, rank=rank, max_tokens=8), answers)
    core.step()
    ids = (*contexts["b"], *(7,) * (88 - len(contexts["b"])))
    submit(core, request("b", ids, rollout_id="b", rank=rank, max_tokens=8), answers)
    for ticket in core.waiting.values():
        core.keys.prepare(ticket, core.served_sha(ticket))
    decision = core.keys.admission.decided(0.0, core.waiting.values(), core.rows.running, 2)
    assert len(decision.admitted) == has_own
    drain(core)
    assert set(answers) == {"req_b", "req_c"}


def test_a_turn_that_is_admitted_first_takes_no_page_of_the_next_one() -> None:
    # Orders uses, and stays far below the time after which a fetch that a busy machine delays is late.
    ticks = itertools.count()
    core = build(2, 9, lambda: next(ticks) * 1e-6, TierSizes(host_pages=16), PLAIN)
    answers: Answers = {}
    contexts = {}
    try:
        for number, name in enumerate("abcd"):
            ids = (number, *LONG)
            result = turn(core, name, ids=ids, rollout_id=name)
            contexts[name] = (*ids, *result.token_ids, 1)
        while core.keys.tiers is not None and core.keys.tiers.is_open:
            core.keys.collect(1.0)
        assert (pages_of(core, "a"), pages_of(core, "b")) == (2, 3), (
            "a lies in memory, b is the oldest"
        )
        for name in "ab":
            one = request(name, contexts[name], rollout_id=name, request_id=name, max_tokens=3)
            submit(core, one, answers)
        drain(core)
        assert answers["b"].cached_tokens == 38
        assert answers["a"].cached_tokens == 32
    finally:
        core.close()
