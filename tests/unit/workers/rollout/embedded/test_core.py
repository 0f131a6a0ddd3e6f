"""The core stepped by hand: admission, rows, eviction, chunks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.engine import (
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
    KvMode,
    Refusal,
    RequestId,
)
from domain.ids import RolloutId
from infra import failpoints
from kv.rules import PLAIN, RANKED, Gaps, KvRules
from tests.support.engines import CHARACTERS, CONTEXT, decoder, reference_logprobs, request
from tests.support.failpoints import ArmedFailpoints
from workers.models.vocab import char_vocabulary
from workers.rollout.embedded import core as core_module
from workers.rollout.embedded import passes
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.key_stats import key_stats
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack
from workers.rollout.embedded.pages.audit import check
from workers.rollout.embedded.pages.nodes import Place
from workers.rollout.embedded.tiers import outer
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes

MODEL = decoder()
PACKED = pack(MODEL.config, MODEL.state_dict(), torch.device("cpu"))

Answers = dict[str, GenResult]


def build(
    slots: int = 2,
    pages: int = 24,
    clock: Callable[[], float] = lambda: 0.0,
    tiers: TierSizes = NO_TIERS,
    rules: KvRules = RANKED,
) -> Core:
    vocabulary = char_vocabulary(CHARACTERS)
    sizes = KeySizes(pages, tiers, rules)
    return Core(PACKED, vocabulary, slots, sizes, version=0, weights_sha="v0", clock=clock)


def submit(core: Core, asked: GenRequest, answers: Answers) -> None:
    def deliver(outcome: GenResult | EngineRefused) -> None:
        assert isinstance(outcome, GenResult), outcome
        assert asked.request_id not in answers, "answered twice"
        answers[asked.request_id] = outcome

    core.submit(asked, deliver)


def drain(core: Core) -> None:
    while core.active or core.waiting:
        core.step()
        assert_whole(core)


def assert_whole(core: Core) -> None:
    """The invariants that the modules of the rows and of the page table promise."""
    rows, n, table = core.rows, core.active, core.keys.table
    check(table)
    assert n <= core.slots
    assert (rows.kv_length[:n] < rows.length[:n]).all()
    parked = [t.parked.running for t in core.waiting.values() if t.parked is not None]
    open_turns = [*rows.running, *parked]
    assert {one.lease.key for one in open_turns} == set(table.leases)
    for row, running in enumerate(rows.running):
        pages = running.lease.pages
        assert rows.tables[row, : len(pages)].tolist() == pages
        assert (rows.tables[row, len(pages) :] == core.keys.arena.null_page).all()
        assert running.lease.length <= rows.kv_length[row] <= rows.room[row]


def pages_of(core: Core, rollout: str) -> int:
    trajectory = core.keys.table.tree.trajectories.get(RolloutId(rollout))
    return 0 if trajectory is None else len(trajectory.path)


def turn(core: Core, name: str, **fields: object) -> GenResult:
    answers: Answers = {}
    submit(core, request(name, **{"request_id": name, **fields}), answers)  # type: ignore[arg-type]
    drain(core)
    return answers[name]


def test_one_step_gives_every_running_turn_one_token() -> None:
    core = build()
    answers: Answers = {}
    submit(core, request("a", max_tokens=3), answers)
    submit(core, request("b", max_tokens=2), answers)
    core.step()
    assert core.counters.sampled_tokens == 2
    core.step()
    assert set(answers) == {"req_b"}
    core.step()
    assert set(answers) == {"req_a", "req_b"}


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "PREFILL_CHUNK", 8)
    core = build()
    answers: Answers = {}
    submit(core, request("short", max_tokens=20), answers)
    core.step()
    ids = tuple(i % 17 for i in range(50))
    submit(core, request("long", ids, max_tokens=5), answers)
    for _ in range(6):
        core.step()
    assert core.counters.sampled_tokens == 7, "the running turn went on meanwhile"
    drain(core)
    result = answers["req_long"]
    expected = reference_logprobs(MODEL, ids + result.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)


LONG = tuple(i % 17 for i in range(30))
"""With what is sampled, three pages of a context."""


def test_the_worst_ranked_keys_are_evicted_first() -> None:
    core = build(slots=1, pages=12)
    for name, rank in (("urgent", 1.0), ("later", 9.0), ("third", 5.0)):
        turn(core, name, ids=(ord(name[0]) % 17, *LONG), rollout_id=name, rank=rank)
    turn(core, "fourth", ids=(16, 16, *LONG), rollout_id="fourth", rank=0.0, max_tokens=20)
    assert pages_of(core, "urgent") == pages_of(core, "third") == 3
    assert pages_of(core, "later") < 3
    assert sum(core.keys.table.tree.evicted.values()) > 0


def test_retained_keys_are_evicted_last_until_their_time_is_over() -> None:
    now = 0.0
    core = build(slots=1, pages=9, clock=lambda: now)
    turn(core, "a", ids=(1, *LONG), rollout_id="a", rank=9.0)
    core.retain(RolloutId("a"), ttl_s=10.0)
    turn(core, "b", ids=(2, *LONG), rollout_id="b", rank=1.0)
    turn(core, "c", ids=(3, *LONG), rollout_id="c", rank=1.0)
    turn(core, "d", ids=(4, *LONG), rollout_id="d", rank=1.0)
    assert pages_of(core, "a") == 3
    now = 11.0
    turn(core, "e", ids=(5, *LONG), rollout_id="e", rank=1.0)
    assert pages_of(core, "a") == 0


def test_a_release_during_a_turn_drops_its_keys_at_the_end() -> None:
    core = build()
    answers: Answers = {}
    submit(core, request("a", rollout_id="ro"), answers)
    core.step()
    core.release(RolloutId("ro"))
    drain(core)
    assert answers["req_a"].finish is Finish.LENGTH
    assert len(core.keys.table.tree.free) == core.keys.table.tree.total


def test_aborted_keys_are_free_at_once() -> None:
    core = build()
    answers: Answers = {}
    for name in ("a", "b"):
        submit(core, request(name, max_tokens=20), answers)
    for _ in range(4):
        core.step()
    core.abort([RequestId("req_a")], "aborted")
    assert_whole(core)
    assert len(answers["req_a"].token_ids) == 4
    assert pages_of(core, "ro_a") == 0
    assert core.keys.table.tree.locked == 1
    drain(core)
    ids = request().token_ids + answers["req_b"].token_ids
    expected = reference_logprobs(MODEL, ids)[len(request().token_ids) - 1 :]
    assert torch.allclose(torch.tensor(answers["req_b"].logprobs), expected, atol=1e-5, rtol=0)


def test_a_full_queue_refuses_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "WAITING_MAX", 2)
    core = build()
    for name in ("a", "b"):
        submit(core, request(name), {})
    with pytest.raises(EngineRefused) as refused:
        submit(core, request("c"), {})
    assert refused.value.reason is Refusal.QUEUE_FULL
    assert core.counters.refused == 1


def test_a_failure_ends_every_open_turn_with_error() -> None:
    core = build(slots=1)
    answers: Answers = {}
    for name in ("a", "b"):
        submit(core, request(name), answers)
    core.step()
    core.fail_all("broken")
    assert {a.finish for a in answers.values()} == {Finish.ERROR}
    assert {a.error for a in answers.values()} == {"broken"}


def play_random_calls(seed: int, slots: int, spare: int) -> None:
    """Random submissions, aborts, releases and ranks; every answer is whole and its own."""
    rng = Random(seed)
    core = build(slots, 6 + 2 * spare)
    answers: Answers = {}
    asked: dict[str, GenRequest] = {}
    for number in range(25):
        rollout = f"ro_{rng.randrange(5)}"
        ids = tuple(rng.randrange(20) for _ in range(rng.randint(1, 40)))
        own = [a for a in answers.values() if a.rollout_id == rollout and a.token_ids]
        if own and rng.random() < 0.5:
            ids = (asked[own[-1].request_id].token_ids + own[-1].token_ids + (3,))[-60:]
        one = request(
            str(number),
            ids,
            rollout_id=rollout,
            rank=float(rng.randrange(3)),
            seed=number,
            max_tokens=rng.randint(1, CONTEXT - len(ids)),
            stop_token_ids=(16,),
        )
        asked[one.request_id] = one
        submit(core, one, answers)
        for _ in range(rng.randrange(6)):
            core.step()
            assert_whole(core)
        if rng.random() < 0.2:
            core.abort([rng.choice(list(asked.values())).request_id], "aborted")
        if rng.random() < 0.2:
            core.release(RolloutId(f"ro_{rng.randrange(5)}"))
        if rng.random() < 0.2:
            core.set_rank({RolloutId(f"ro_{rng.randrange(5)}"): float(rng.randrange(3))})
        assert_whole(core)
    drain(core)
    assert set(answers) == set(asked)
    for name, result in answers.items():
        ids = asked[name].token_ids
        if result.token_ids:
            expected = reference_logprobs(MODEL, ids + result.token_ids)[len(ids) - 1 :]
            assert torch.allclose(torch.tensor(result.logprobs), expected, atol=2e-5, rtol=0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 4), spare=st.integers(0, 3))
def test_no_order_of_calls_loses_a_request_or_mixes_rows(seed: int, slots: int, spare: int) -> None:
    play_random_calls(seed, slots, spare)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 4), spare=st.integers(0, 3))
def test_no_longer_order_of_calls_does_either(seed: int, slots: int, spare: int) -> None:
    play_random_calls(seed, slots, spare)


def assert_right(asked: Mapping[str, GenRequest], answers: Answers) -> None:
    """Every answer is what a full forward of the trainer's model gives for it."""
    assert set(answers) == set(asked)
    for name, result in answers.items():
        ids = asked[name].token_ids
        assert result.finish in (Finish.STOP, Finish.LENGTH)
        expected = reference_logprobs(MODEL, ids + result.token_ids)[len(ids) - 1 :]
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=2e-5, rtol=0)


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
                rank=float(ranks.randrange(40)),
                temperature=0.0,
                max_tokens=8 + stream % 9,
            )
            asked[one.request_id] = one
            submit(core, one, answers)
            core.step()
        drain(core)
    assert_right(asked, answers)
    return answers


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
        "worse": request("w", LONG, request_id="worse", rank=5.0, max_tokens=30),
        "better": request("b", request_id="better", rank=1.0, max_tokens=4),
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
    submit(core, request("a", rank=5.0, max_tokens=6), answers)
    core.step()
    submit(core, request("b", rank=5.0), answers)
    submit(core, replace(request("c", rank=1.0), tenant="org_1"), answers)
    core.step()
    assert core.rows.running[0].ticket.request.request_id == "req_a"
    drain(core)
    assert core.counters.preemptions == 0


def test_a_new_rank_takes_a_slot_from_a_running_turn() -> None:
    core = build(slots=1)
    answers: Answers = {}
    for name, rank in (("a", 2.0), ("b", 3.0)):
        submit(core, request(name, rank=rank, max_tokens=9), answers)
    core.step()
    core.set_rank({RolloutId("ro_b"): 1.0})
    core.step()
    assert core.rows.running[0].ticket.request.request_id == "req_b"
    drain(core)


def test_when_pages_run_out_the_worst_ranked_turn_gives_up_its_slot() -> None:
    core = build(slots=3, pages=6)
    answers: Answers = {}
    asked = {}
    for name, rank in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
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
    submit(core, request("worse", rank=5.0, max_tokens=30), answers)
    for _ in range(3):
        core.step()
    submit(core, request("better", rank=1.0, max_tokens=30), answers)
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
    worse = request("w", LONG, request_id="worse", rank=5.0, max_tokens=40)
    submit(core, worse, answers)
    for _ in range(20):
        core.step()
    submit(core, request("b", request_id="better", rank=1.0, max_tokens=4), answers)
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
    submit(core, request("worse", (1, *LONG), rank=2.0, max_tokens=2), answers)
    submit(core, request("better", (2, *LONG), rank=1.0, max_tokens=2), answers)
    drain(core)
    assert list(answers) == ["req_better", "req_worse"]


def test_under_a_time_to_live_a_gap_pins_its_pages_for_as_long_as_tools_take() -> None:
    now = 0.0
    core = build(slots=1, clock=lambda: now, rules=KvRules(gaps=Gaps.TTL))
    turn(core, "a", ids=LONG, rollout_id="a")
    assert core.keys.table.tree.trajectories[RolloutId("a")].kept_until == now + 2.0
