"""Who finds which page, what is charged once, what goes first."""

from collections.abc import Sequence

import pytest

from domain.ids import RolloutId
from kv.rules import Eviction
from workers.rollout.embedded.pages.audit import check
from workers.rollout.embedded.pages.nodes import (
    Copy,
    KvClass,
    Lease,
    Namespace,
    Node,
    Place,
    digests_of,
)
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.pages.tree import EvictReason

ANN = Namespace("ann", "sha of base and v1")
PROMPT = tuple(range(40))
"""Two full pages and a half."""


def opened(
    table: PageTable,
    rollout: str,
    tokens: Sequence[int] = PROMPT,
    namespace: Namespace = ANN,
    now: float = 0.0,
) -> Lease:
    """A turn whose context is computed."""
    lease = table.open(RolloutId(rollout), namespace, tokens, now)
    table.extend(lease, digests_of(namespace, tokens[:-1]), now)
    assert table.grow(lease, len(tokens), EvictReason.PROMPT, now)
    table.fill(lease, tokens[lease.length :], now)
    check(table)
    return lease


def ended(table: PageTable, rollout: str, rank: int = 0, now: float = 0.0) -> None:
    """A rollout with a context of its own whose tool runs: three pages."""
    tokens = tuple(ord(c) for c in rollout) + PROMPT
    lease = opened(table, rollout, tokens, now=now)
    lease.trajectory.rank = rank
    table.close(lease, True, now)


def pages_of(table: PageTable, rollout: str) -> int:
    trajectory = table.tree.trajectories.get(RolloutId(rollout))
    return 0 if trajectory is None else len(trajectory.path)


def test_members_of_a_group_share_the_pages_of_their_prompt() -> None:
    table = PageTable(16)
    first, second = opened(table, "a"), opened(table, "b", (*PROMPT[:39], 7))
    assert [n.key for n in first.nodes[:2]] == [n.key for n in second.nodes[:2]]
    assert table.tree.locked == 4
    assert second.found == 2


def test_a_page_that_two_turns_computed_at_once_is_kept_once() -> None:
    table = PageTable(16)
    both = [table.open(RolloutId(name), ANN, PROMPT, 0.0) for name in "ab"]
    for lease in both:
        table.grow(lease, len(PROMPT), EvictReason.PROMPT, 0.0)
    assert table.tree.locked == 6
    has_changed = [table.fill(lease, PROMPT, 0.0) for lease in both]
    assert has_changed == [False, True]
    assert both[0].pages[:2] == both[1].pages[:2]
    assert table.tree.locked == 4
    check(table)


@pytest.mark.parametrize(
    "other", [Namespace("bob", ANN.weights_sha), Namespace("ann", "sha of base and v2")]
)
def test_no_page_is_found_by_another_tenant_or_at_other_weights(other: Namespace) -> None:
    table = PageTable(16)
    opened(table, "a")
    lease = table.open(RolloutId("a"), other, PROMPT, 0.0)
    assert (lease.length, lease.nodes) == (0, [])


def test_the_last_token_of_a_context_is_always_left_to_compute() -> None:
    table = PageTable(16)
    table.close(opened(table, "a", PROMPT[:32]), True, 0.0)
    lease = table.open(RolloutId("a"), ANN, PROMPT[:32], 0.0)
    assert lease.length == 31
    check(table)


def test_the_next_turn_goes_on_in_the_middle_of_a_page() -> None:
    table = PageTable(16)
    table.close(opened(table, "a"), True, 0.0)
    before = pages_of(table, "a")
    lease = opened(table, "a", (*PROMPT, 1, 2))
    assert (lease.found, len(lease.nodes), before) == (3, 3, 3)
    assert table.hit_tokens[KvClass.HIGH_REF] == 40


def test_a_history_that_was_rewritten_inside_a_shared_page_gets_a_page_of_its_own() -> None:
    copied: list[tuple[int, int]] = []
    table = PageTable(16, on_branch=lambda source, target: copied.append((source, target)))
    table.close(opened(table, "a"), True, 0.0)
    table.fork(RolloutId("a"), RolloutId("b"))
    lease = table.open(RolloutId("b"), ANN, (*PROMPT[:36], 99, 98), 0.0)
    assert lease.length == 36
    path = table.tree.trajectories[RolloutId("a")].path
    assert copied == [(path[2].page, lease.nodes[2].page)]
    assert len(path[2].tokens) == 8
    check(table)


def test_a_turn_that_gets_its_slot_back_leaves_the_page_that_a_fork_goes_on_in() -> None:
    table = PageTable(16)
    waiting = opened(table, "a")
    table.park(waiting, 0.0)
    table.fork(RolloutId("a"), RolloutId("b"))
    table.close(opened(table, "a", tuple(range(50, 70))), True, 0.0)
    fork = table.open(RolloutId("b"), ANN, (*PROMPT, 1, 2), 0.0)
    table.resume(waiting, 0.0)
    assert (fork.length, waiting.length) == (40, 32)
    table.fill(fork, (1, 2), 0.0)
    check(table)


def test_an_aborted_turn_frees_at_once_what_only_it_computed() -> None:
    table = PageTable(16)
    table.close(opened(table, "a"), True, 0.0)
    lease = opened(table, "a", (*PROMPT, *range(30)))
    table.close(lease, False, 0.0)
    assert (table.tree.locked, len(table.tree.free)) == (0, 13)
    check(table)


def test_a_released_rollout_leaves_only_pages_that_others_can_find() -> None:
    table = PageTable(16)
    table.close(opened(table, "a"), True, 0.0)
    table.release(RolloutId("a"))
    assert [n.kv_class for n in table.tree.nodes.values()] == [KvClass.UNUSED] * 2
    assert opened(table, "b").found == 2


def test_unused_pages_go_first_then_low_ones_from_the_worst_rank_then_high_ones() -> None:
    table = PageTable(12)
    for name, rank in (("high", 1), ("better", 2), ("worse", 9), ("gone", 0)):
        ended(table, name, rank)
    table.release(RolloutId("gone"))
    for name in ("better", "worse"):
        table.tree.trajectories[RolloutId(name)].is_low = True
    lost: list[str] = []
    for count in range(len(table.tree.free) + 1, 13):
        table.tree.make_room(count, EvictReason.PROMPT, 0.0)
        lost += [n for n in ("worse", "better", "high") if not pages_of(table, n) and n not in lost]
        check(table)
    assert lost == ["worse", "better", "high"]
    classes = [kv_class for (_, kv_class), _ in table.tree.evicted.items()]
    assert classes == [KvClass.UNUSED, KvClass.LOW_REF, KvClass.HIGH_REF]


def test_by_recency_the_oldest_goes_first_whatever_its_rank() -> None:
    table = PageTable(9, Eviction.RECENCY)
    for now, (name, rank) in enumerate((("old", 0), ("newer", 9), ("newest", 5))):
        ended(table, name, rank, float(now))
    table.tree.make_room(3, EvictReason.PROMPT, 5.0)
    assert [pages_of(table, n) for n in ("old", "newer", "newest")] == [0, 3, 3]


def test_pages_that_somebody_asked_to_keep_go_last_until_the_time_is_over() -> None:
    table = PageTable(6)
    ended(table, "kept", rank=9)
    table.tree.trajectories[RolloutId("kept")].kept_until = 10.0
    ended(table, "better", rank=1)
    table.tree.make_room(1, EvictReason.PROMPT, 5.0)
    assert (pages_of(table, "kept"), pages_of(table, "better")) == (3, 2)
    table.tree.make_room(2, EvictReason.PROMPT, 11.0)
    assert (pages_of(table, "kept"), pages_of(table, "better")) == (2, 2)


def test_room_that_running_turns_hold_is_not_made_and_nothing_is_lost_for_it() -> None:
    table = PageTable(8)
    ended(table, "idle")
    opened(table, "running")
    assert not table.tree.make_room(6, EvictReason.PROMPT, 0.0)
    assert pages_of(table, "idle") == 3


def test_a_parked_turn_finds_its_pages_again_or_what_is_left_of_them() -> None:
    table = PageTable(4)
    lease = opened(table, "a")
    table.park(lease, 0.0)
    assert table.tree.locked == 0
    table.resume(lease, 0.0)
    assert lease.length == 40
    table.park(lease, 0.0)
    table.tree.make_room(2, EvictReason.PROMPT, 0.0)
    table.resume(lease, 0.0)
    assert (lease.length, len(lease.nodes)) == (32, 2)
    check(table)


def test_pages_of_a_turn_that_outlived_its_weights_are_matched_by_nobody() -> None:
    table = PageTable(16)
    running, parked = opened(table, "a"), opened(table, "b", (*PROMPT[:36], 5))
    table.park(parked, 0.0)
    table.retire(lambda namespace: True, 0.0)
    check(table)
    assert running.length == 40
    assert table.open(RolloutId("c"), ANN, PROMPT, 0.0).length == 0
    table.resume(parked, 0.0)
    assert parked.length == 37
    for lease in (running, parked):
        table.grow(lease, 64, EvictReason.GROWTH, 0.0)
        table.fill(lease, (3,) * 20, 0.0)
        table.close(lease, True, 0.0)
    check(table)
    assert [pages_of(table, name) for name in "ab"] == [4, 4]
    assert table.open(RolloutId("d"), ANN, PROMPT, 0.0).length == 0
    for name in "ab":
        table.release(RolloutId(name))
    check(table)
    assert len(table.tree.free) == 16


NEWER = Namespace("ann", "sha of base and v2")


def between_turns(table: PageTable, lineage: str = "ann") -> None:
    """A rollout of two pages and a half whose tool runs while weights change."""
    lease = table.open(RolloutId("a"), ANN, (*PROMPT, 7), 0.0, lineage)
    assert table.grow(lease, 40, EvictReason.PROMPT, 0.0)
    table.fill(lease, PROMPT, 0.0)
    table.close(lease, True, 0.0)
    table.retire(lambda namespace: namespace == ANN, 0.0)
    check(table)


def test_a_rollout_goes_on_over_its_pages_after_every_update_and_nobody_else_finds_them() -> None:
    table = PageTable(16)
    between_turns(table)
    tokens = PROMPT
    for version in (2, 3, 4):
        newer = Namespace("ann", f"sha of base and v{version}")
        lease = table.open(RolloutId("a"), newer, (*tokens, 1, 2), 0.0, "ann")
        assert (lease.length, lease.is_private) == (len(tokens), True)
        other = table.open(RolloutId("b"), newer, (*tokens, 1, 2), 0.0, "ann")
        assert (other.length, other.is_private) == (0, False)
        table.close(other, False, 0.0)
        tokens = (*tokens, *range(20))
        assert table.grow(lease, len(tokens), EvictReason.GROWTH, 0.0)
        table.fill(lease, tokens[lease.length :], 0.0)
        table.close(lease, True, 0.0)
        table.retire(newer.__eq__, 0.0)
        check(table)
    table.release(RolloutId("a"))
    assert len(table.tree.free) == 16


def test_an_abort_leaves_the_pages_that_were_there() -> None:
    table = PageTable(16)
    between_turns(table)
    lease = table.open(RolloutId("a"), NEWER, (*PROMPT[:32], 1, 2), 0.0, "ann")
    assert lease.length == 32
    table.grow(lease, 48, EvictReason.GROWTH, 0.0)
    table.fill(lease, (1,) * 16, 0.0)
    table.close(lease, False, 0.0)
    check(table)
    assert pages_of(table, "a") == 2
    assert table.open(RolloutId("a"), NEWER, (*PROMPT[:32], 1, 2), 0.0, "ann").length == 32


def test_a_context_that_differs_is_computed_anew_from_there_on() -> None:
    table = PageTable(16)
    between_turns(table)
    lease = table.open(RolloutId("a"), NEWER, (*PROMPT[:16], *(9,) * 24), 0.0, "ann")
    assert (lease.length, lease.is_private) == (16, True)
    table.close(lease, True, 0.0)
    wholly = table.open(RolloutId("a"), NEWER, (9,) * 40, 0.0, "ann")
    assert (wholly.length, wholly.is_private) == (0, False)
    table.grow(wholly, 40, EvictReason.PROMPT, 0.0)
    table.fill(wholly, (9,) * 40, 0.0)
    table.close(wholly, True, 0.0)
    check(table)
    assert table.open(RolloutId("b"), NEWER, (9,) * 40, 0.0, "ann").length == 32


def test_another_tenant_or_adapter_under_the_rollout_s_name_finds_nothing() -> None:
    table = PageTable(16)
    between_turns(table, "ann with adapter x")
    lease = table.open(RolloutId("a"), NEWER, (*PROMPT, 1), 0.0, "ann with adapter y")
    assert (lease.length, lease.is_private) == (0, False)


def test_an_update_that_drops_leaves_nothing_between_turns() -> None:
    table = PageTable(16)
    lease = opened(table, "a")
    table.close(lease, True, 0.0)
    table.retire(lambda namespace: True, 0.0, keeps_paths=False)
    check(table)
    assert len(table.tree.free) == 16


def test_what_comes_from_another_engine_does_not_hang_behind_older_pages() -> None:
    table = PageTable(16)
    between_turns(table)
    first, pages = table.adopt(RolloutId("a"), NEWER, PROMPT[:32], 0.0)
    assert (first, len(pages)) == (0, 2)
    check(table)
    assert table.open(RolloutId("b"), NEWER, (*PROMPT, 1), 0.0).length == 32


def test_a_fork_goes_on_over_private_pages_without_writing_into_them() -> None:
    table = PageTable(16)
    between_turns(table)
    table.fork(RolloutId("a"), RolloutId("b"))
    one, two = (table.open(RolloutId(name), NEWER, (*PROMPT, 1), 0.0, "ann") for name in ("a", "b"))
    assert (one.length, two.length) == (40, 40)
    assert one.nodes[:2] == two.nodes[:2]
    assert one.nodes[2] is not two.nodes[2]
    check(table)


def with_host(table: PageTable, is_ready: bool = True) -> list[Node]:
    """Every page that leaves gets a copy."""
    left: list[Node] = []

    def leave(node: Node) -> None:
        left.append(node)
        node.copy = Copy(Place.HOST, len(left), is_ready)

    table.tree.on_leave = leave
    return left


def test_a_page_in_an_outer_tier_is_usable_only_once_its_store_completed() -> None:
    table = PageTable(4)
    left = with_host(table, is_ready=False)
    ended(table, "a")
    table.tree.make_room(4, EvictReason.PROMPT, 0.0)
    context = (ord("a"), *PROMPT)
    digests = digests_of(ANN, context)
    lease = table.open(RolloutId("a"), ANN, context, 0.0)
    assert table.missing(lease, digests) == []
    for node in left:
        assert node.copy is not None
        node.copy.is_ready = True
    assert len(table.missing(lease, digests)) == 2


def test_pages_on_their_way_are_for_nobody_else_until_they_are_there() -> None:
    table = PageTable(8)
    with_host(table)
    ended(table, "a")
    table.tree.make_room(8, EvictReason.PROMPT, 0.0)
    context = (ord("a"), *PROMPT)
    digests = digests_of(ANN, context[:-1])
    lease = table.open(RolloutId("a"), ANN, context, 0.0)
    assert len(table.fetch(lease, table.missing(lease, digests), 0.0)) == 2
    check(table)
    other = table.open(RolloutId("b"), ANN, context, 0.0)
    assert other.length == lease.length == 0
    assert table.is_coming(other, digests)
    table.arrived(lease)
    assert lease.length == 32
    assert table.extend(other, digests, 0.0) == 32
    check(table)


@pytest.mark.parametrize("end", ["failed", "close", "park", "truncate"])
def test_a_fetch_that_ends_early_leaves_no_page_without_content(end: str) -> None:
    table = PageTable(8)
    with_host(table)
    ended(table, "a")
    table.tree.make_room(8, EvictReason.PROMPT, 0.0)
    context = (ord("a"), *PROMPT)
    digests = digests_of(ANN, context[:-1])
    lease = table.open(RolloutId("a"), ANN, context, 0.0)
    table.fetch(lease, table.missing(lease, digests), 0.0)
    if end == "failed":
        table.failed(lease, 0.0)
    elif end == "close":
        table.close(lease, True, 0.0)
    elif end == "park":
        table.park(lease, 0.0)
    else:
        table.truncate(lease, 0, 0.0)
    check(table)
    assert len(table.tree.free) == 8
    assert len(table.tree.index) == (0 if end == "failed" else 2)


def test_a_context_from_another_engine_is_found_by_its_rollout_and_its_group() -> None:
    here, there = PageTable(8), PageTable(8)
    here.close(opened(here, "a"), True, 0.0)
    opened(there, "sibling", PROMPT[:20])
    tokens = [t for node in here.exported(RolloutId("a"), ANN) for t in node.tokens]
    first, pages = there.adopt(RolloutId("a"), ANN, tokens, 0.0)
    assert (first, len(pages)) == (1, 1)
    check(there)
    assert there.open(RolloutId("a"), ANN, PROMPT, 0.0).length == 32


def test_a_context_that_does_not_fit_is_not_taken_in() -> None:
    table = PageTable(3)
    opened(table, "running")
    assert table.adopt(RolloutId("a"), ANN, (9,) * 32, 0.0) == (0, [])
    check(table)
