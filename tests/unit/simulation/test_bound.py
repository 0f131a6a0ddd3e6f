"""The perfect-packing bound: cases by hand, and runs of a small engine that may not beat it."""

from random import Random

import pytest

from simulation.bound import fastest_line_s, perfect_packing
from simulation.physics import EnginePhysics, prefill_steps
from simulation.workload.trajectory import Trajectory
from tests.unit.simulation.machines import STEP_FLOOR_S, machines, physics, rollout


def test_two_siblings_by_hand() -> None:
    """Prefix 4; outputs 3 and 2. Private tokens read: 0+1+2 and 0+1. Slots decide the steps."""
    bound = perfect_packing(
        [(rollout((4, 3)), rollout((4, 2)))], machines(), batches=1, max_staleness=0
    )
    assert bound.prefill_s == pytest.approx(4 * (100 + 4 * 2) / 100)
    assert bound.kv_read_s == pytest.approx((4 * 3 + 4) * 0.01)
    assert bound.steps_by_capacity == pytest.approx(4 / 10)
    assert bound.steps_by_slots == pytest.approx(5 / 2)
    assert bound.floor_s == pytest.approx(5.0)
    assert bound.step_s == pytest.approx(4.32 + 0.16 + 5.0)


def test_a_second_turn_by_hand() -> None:
    """Behind 4 + 2 tokens come 5 more, then 2 outputs, each beside 7 and 8 private tokens."""
    bound = perfect_packing([(rollout((4, 2), (5, 2)),)], machines(), batches=1, max_staleness=0)
    assert bound.prefill_s == pytest.approx(4 * 1.08 + 5 * (100 + 4 * 8.5) / 100)
    assert bound.steps_by_capacity == pytest.approx((0 + 1 + 7 + 8) / 10)
    assert bound.kv_read_s == pytest.approx((4 * 4 + 16) * 0.01)
    assert bound.steps_by_slots == pytest.approx(4 / 2)


def test_a_full_cache_decides_the_steps_when_contexts_are_long() -> None:
    group = (rollout((4, 1), (9, 5)), rollout((4, 1), (9, 5)))
    bound = perfect_packing([group], machines(), batches=1, max_staleness=0)
    private = 2 * (0 + sum(10 + i for i in range(5)))
    assert bound.steps_by_capacity == pytest.approx(private / 10)
    assert bound.steps_by_capacity > bound.steps_by_slots
    assert bound.floor_s == pytest.approx(private / 10 * STEP_FLOOR_S)


def test_engines_share_the_work_and_each_waits_for_syncs() -> None:
    group = (rollout((4, 3)), rollout((4, 2)))
    alone = perfect_packing([group] * 6, machines(), batches=3, max_staleness=0)
    spread = perfect_packing(
        [group] * 6,
        machines(engines=2, weight_sync_s=5.0, update_s=5.0),
        batches=3,
        max_staleness=0,
    )
    assert spread.engine_s == pytest.approx(alone.engine_s / 2 + 5.0)


def test_a_slow_trainer_is_the_bound() -> None:
    """7 + 6 tokens in all, prompts and outputs, at half a token a second, and an update."""
    slow = machines(trainer_tokens_s=0.5, update_s=10.0)
    group = (rollout((4, 3)), rollout((4, 2)))
    bound = perfect_packing([group], slow, batches=1, max_staleness=0)
    assert bound.step_s == bound.trainer_s == pytest.approx(13 / 0.5 + 10)


def test_syncs_that_may_follow_the_last_token_are_not_counted_beyond_what_follows_it() -> None:
    """Staleness 1 over 3 steps: one sync precedes the last start; then comes training, 13 s + 1 s."""
    group = (rollout((4, 3)), rollout((4, 2)))

    def stalled(sync_s: float) -> float:
        with_syncs = machines(trainer_tokens_s=1.0, update_s=1.0, weight_sync_s=sync_s)
        bound = perfect_packing([group] * 3, with_syncs, batches=3, max_staleness=1)
        without = perfect_packing([group] * 3, machines(), batches=3, max_staleness=1)
        return 3 * (bound.engine_s - without.engine_s)

    assert stalled(5.0) == pytest.approx(3 * 5.0)
    assert stalled(100.0) == pytest.approx(100.0 + 14.0)


def test_the_line_of_unfinished_groups_by_hand() -> None:
    """Steps of `STEP_FLOOR_S` and reads of 0.01 s a token; the third group follows the shorter one."""
    short, long = (rollout((4, 2)),), (rollout((4, 1)), rollout((4, 6)))
    short_s = 2 * STEP_FLOOR_S + (4 + 5) * 0.01
    long_s = 6 * STEP_FLOOR_S + sum(4 + i for i in range(6)) * 0.01
    assert fastest_line_s([short], physics(), 1) == pytest.approx(short_s)
    assert fastest_line_s([long, short, short], physics(), 2) == pytest.approx(long_s)
    assert fastest_line_s([long, short, short], physics(), 1) == pytest.approx(long_s + 2 * short_s)


def test_siblings_with_different_prompts_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="first prompt"):
        perfect_packing(
            [(rollout((4, 1)), rollout((5, 1)))], machines(), batches=1, max_staleness=0
        )


class Packed:
    """One engine without tools: siblings decode in the order given, as many as fit, prefix once."""

    def __init__(self, engine: EnginePhysics) -> None:
        self.engine = engine
        self.spent_s = 0.0

    def prefill(self, tokens: int, cached: int) -> None:
        """Steps that only prefill: each has its floor."""
        self.spent_s += prefill_steps(tokens) * self.engine.step_floor_s
        self.spent_s += self.engine.prefill_after_s(tokens, cached)

    def run(self, group: tuple[Trajectory, ...]) -> None:
        """Waves of at most `slots` siblings, turn by turn, without an eviction."""
        prefix = group[0].turns[0].new_tokens
        self.prefill(prefix, 0)
        for start in range(0, len(group), self.engine.slots):
            self._wave(prefix, group[start : start + self.engine.slots])

    def _wave(self, prefix: int, wave: tuple[Trajectory, ...]) -> None:
        for turn_index in range(max(len(one.turns) for one in wave)):
            live = [one for one in wave if turn_index < len(one.turns)]
            left = [self._begun(one, turn_index, prefix) for one in live]
            while any(outputs for outputs, _ in left):
                held = sum(private for outputs, private in left if outputs)
                assert held <= self.engine.kv_capacity_tokens
                self.spent_s += self.engine.decode_step_s(prefix + held)
                left = [(n - 1, private + 1) for n, private in left if n]

    def _begun(self, one: Trajectory, index: int, prefix: int) -> tuple[int, int]:
        """Outputs to sample and private tokens held, once the turn's prompt is in the cache."""
        prompt, turn = list(one.with_prompts())[index]
        if index:
            self.prefill(turn.new_tokens, prompt - turn.new_tokens)
        return turn.output_tokens, prompt - prefix


@pytest.mark.parametrize("seed", range(40))
def test_no_packing_of_random_groups_beats_the_bound(seed: int) -> None:
    chance = Random(seed)
    engine = physics(kv_capacity_tokens=400, slots=chance.randint(1, 4))
    prefix = chance.randint(1, 3_000)
    groups = [
        tuple(
            rollout(
                (prefix, chance.randint(1, 9)),
                *(
                    (chance.randint(0, 30), chance.randint(1, 9))
                    for _ in range(chance.randint(0, 2))
                ),
            )
            for _ in range(chance.randint(1, 5))
        )
        for _ in range(4)
    ]
    packed = Packed(engine)
    for group in groups:
        packed.run(group)
    bound = perfect_packing(groups, machines(engine), batches=2, max_staleness=0)
    assert bound.step_s * 2 <= packed.spent_s


def test_a_run_whose_steps_are_all_full_is_slower_by_its_prefill_steps_alone() -> None:
    """Both slots decode in every step: nothing but the floor of the prefill step is not in it."""
    group = (rollout((4, 5)), rollout((4, 5)))
    packed = Packed(physics(kv_capacity_tokens=100))
    packed.run(group)
    bound = perfect_packing(
        [group], machines(physics(kv_capacity_tokens=100)), batches=1, max_staleness=0
    )
    assert packed.spent_s - bound.step_s == pytest.approx(STEP_FLOOR_S)
