"""What a queued turn waits for follows from what the next step of its engine would give it."""

from dataclasses import replace

from domain.engine import EngineStats
from domain.ids import RolloutId
from domain.schedule import WaitReason
from workers.rollout.turn_queue import Queued, reasons_of

PAGE_TOKENS = 16


STATS = EngineStats(
    version=3, weights_sha="sha3", paused=False, active=0, waiting=4, slots=64,
    kv_pages_used=40, kv_pages=1152, kv_pages_held=2, retained_rollouts=5, steps=0,
    sampled_tokens=0, prefilled_tokens=0, cached_tokens=0, finished=0, aborted=0, refused=0,
    evictions=0, preemptions=0, weight_updates=0, sync_failures=0, busy_s=0.0,
)  # fmt: skip
"""64 free slots, 1152 pages of which running turns hold two."""


def reasons(stats: EngineStats, *turns: tuple[str, int, int]) -> dict[str, WaitReason]:
    queued = [Queued(RolloutId(name), rank, tokens) for name, rank, tokens in turns]
    return {str(name): why for name, why in reasons_of(queued, stats, PAGE_TOKENS).items()}


def test_turns_that_fit_wait_for_the_step_that_takes_them() -> None:
    found = reasons(STATS, ("a", 0, 40), ("b", 0, 40), ("c", 0, 40), ("d", 0, 40))
    assert set(found.values()) == {WaitReason.WAITS_FOR_STEP}


def test_the_last_slot_goes_to_the_best_rank() -> None:
    found = reasons(replace(STATS, active=63), ("late", 2, 40), ("first", 1, 40))
    assert found == {"first": WaitReason.WAITS_FOR_STEP, "late": WaitReason.WAITS_FOR_SLOT}


def test_pages_that_better_ranks_take_are_lacking_behind_them() -> None:
    few = replace(STATS, kv_pages_held=1148)
    found = reasons(few, ("first", 0, 33), ("long", 1, 17), ("short", 2, 16))
    assert found == {
        "first": WaitReason.WAITS_FOR_STEP,
        "long": WaitReason.WAITS_FOR_KV,
        "short": WaitReason.WAITS_FOR_STEP,
    }


def test_an_engine_without_pages_lacks_none() -> None:
    bare = replace(STATS, kv_pages=0, kv_pages_held=0)
    assert reasons(bare, ("a", 0, 40)) == {"a": WaitReason.WAITS_FOR_STEP}


def test_a_pause_for_weights_comes_before_all() -> None:
    paused = replace(STATS, paused=True, active=64)
    assert reasons(paused, ("a", 0, 40)) == {"a": WaitReason.WAITS_FOR_WEIGHTS}
