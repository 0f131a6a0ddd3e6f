"""Cheapest rung first, critical groups last on each, nobody killed while anything cheaper is left."""

from sandboxes.core.ladder import Action, Pressed, Resident, Rung, Tools, climb
from sandboxes.core.names import GIB, MIB
from tests.unit.sandboxes.core.made import key, resident

ROOMY = Tools(swap_free_bytes=64 * GIB, disk_free_bytes=64 * GIB)
BARE = Tools(can_balloon=False, can_page_out=False, can_evict=False)


def climbed(
    wanted_mib: int, *residents: Resident, tools: Tools = ROOMY, admitting: bool = False
) -> list[tuple[Rung, int | None, int]]:
    actions = climb(Pressed(wanted_mib * MIB, admitting, residents, tools))
    return [
        (one.rung, one.key.index if one.key else None, one.bytes_expected // MIB) for one in actions
    ]


def test_admission_stops_first_and_frees_nothing() -> None:
    assert climb(Pressed(1, True, (), BARE)) == (Action(Rung.STOP_ADMISSION, None, 0),)


def test_without_a_need_nothing_is_done() -> None:
    assert climb(Pressed(0, True, (resident(1),), ROOMY)) == ()


def test_a_balloon_goes_before_a_page_out() -> None:
    one = resident(1, free_bytes=50 * MIB)
    assert climbed(40, one) == [(Rung.BALLOON, 1, 50)]
    assert climbed(60, one) == [(Rung.BALLOON, 1, 50), (Rung.PAGE_OUT, 1, 150)]


def test_the_worst_rank_goes_first_and_the_critical_last() -> None:
    three = (resident(1), resident(2), resident(3, is_critical=True))
    assert climbed(600, *three) == [
        (Rung.PAGE_OUT, 2, 200), (Rung.PAGE_OUT, 1, 200), (Rung.PAGE_OUT, 3, 200),
    ]  # fmt: skip


def test_a_gap_shorter_than_the_way_back_is_not_paged_out() -> None:
    # 200 MiB out and back at 2e9 bytes a second: 0.21 s
    assert climbed(10, resident(1, gap_left_s=0.2)) == [(Rung.EVICT, 1, 205)]
    assert climbed(10, resident(1, gap_left_s=0.22)) == [(Rung.PAGE_OUT, 1, 200)]


def test_a_swap_that_is_almost_full_makes_no_gap_long_enough() -> None:
    narrow = Tools(swap_free_bytes=9 * MIB)
    assert climbed(10, resident(1, gap_left_s=0.01), tools=narrow) == [(Rung.KILL, 1, 205)]


def test_a_sandbox_whose_tool_runs_is_neither_ballooned_nor_paged_out() -> None:
    running = resident(1, is_in_generation=False, free_bytes=100 * MIB)
    assert climbed(10, running) == [(Rung.EVICT, 1, 205)]


def test_who_waits_for_a_generation_is_evicted_before_who_runs() -> None:
    small = Tools(disk_free_bytes=64 * GIB)
    assert climbed(10, resident(1), resident(9, is_in_generation=False), tools=small) == [
        (Rung.EVICT, 1, 205)
    ]


def test_swap_and_disk_are_used_up_and_no_further() -> None:
    narrow = Tools(swap_free_bytes=150 * MIB, disk_free_bytes=60 * MIB)
    assert climbed(1_000, resident(1), resident(2), tools=narrow) == [
        (Rung.PAGE_OUT, 2, 150), (Rung.EVICT, 2, 55), (Rung.KILL, 1, 205),
    ]  # fmt: skip


def test_everybody_is_evicted_before_anybody_is_killed() -> None:
    two = (resident(1, is_critical=True), resident(2))
    one_place = Tools(can_page_out=False, disk_free_bytes=200 * MIB)
    assert climbed(300, *two, tools=one_place) == [(Rung.EVICT, 2, 205), (Rung.KILL, 1, 205)]


def test_the_worst_rank_is_killed_whether_its_tool_runs_or_not() -> None:
    two = (resident(1), resident(2, is_in_generation=False), resident(3, is_critical=True))
    assert climbed(300, *two, tools=BARE) == [(Rung.KILL, 2, 205), (Rung.KILL, 1, 205)]


def test_what_a_runtime_cannot_do_is_left_out() -> None:
    none = Tools(can_balloon=False, can_page_out=False, disk_free_bytes=GIB)
    assert climbed(10, resident(1, free_bytes=50 * MIB), tools=none) == [(Rung.EVICT, 1, 205)]


def test_the_ladder_ends_as_soon_as_enough_is_expected() -> None:
    actions = climbed(205, *(resident(index) for index in range(10)), tools=BARE)
    assert actions == [(Rung.KILL, 9, 205)]


def test_equal_ranks_are_ordered_by_their_keys() -> None:
    twins = (resident(2, rank=5), resident(1, rank=5))
    assert climbed(10, *twins, tools=BARE) == [(Rung.KILL, 1, 205)]
    assert key(1) < key(2)
