"""Golden cases of the benchmark's section 5: computed by hand, met exactly.

With the round numbers of `machines.physics` a step's floor is 2 s, reading KV is 0.01 s a token, and
prefill of n tokens that attend to c on average takes n x (2 x 50 + 4 x c) / 100 = n x (1 + 0.04 c) s.
"""

from dataclasses import replace
from typing import Final

import pytest

from benchmarks.fixed import fixed
from kv.ranks import RankClass
from kv.rules import PLAIN, RANKED, KvRules
from simulation.stream import Phase
from tests.unit.simulation.modelled import ROUND, Yard, prefix_of

BOTH: Final = pytest.mark.parametrize("rules", [PLAIN, RANKED], ids=["plain", "ranked"])


@BOTH
def test_one_turn_on_an_empty_cache_takes_its_chunks_and_one_step_a_token(rules: KvRules) -> None:
    """5,000 tokens are chunks of 2,048 + 2,048 + 904, then three tokens are sampled.

    prefill  5,000 x (1 + 0.04 x 2,500)  =  505,000.00   however it is cut
    floors   3 chunks x 2                =        6.00
    decode   3 x 2                       =        6.00
    KV       (5,000 + 5,001 + 5,002)/100 =      150.03
    """
    yard = Yard()
    engine = yard.engine(rules)
    yard.begin(engine, yard.stream(prefix_of(0, 5_000), (5_000, 3)))
    yard.run()
    counts = engine.counts
    assert (counts.prefill_steps, counts.steps) == (3, 3 + 3)
    assert (counts.prefilled_tokens, counts.recomputed_tokens) == (5_000, 0)
    assert [at for _, at in yard.sampled_at] == [pytest.approx(505_162.03, abs=1e-6)]


@BOTH
def test_a_prefix_of_two_rollouts_is_computed_held_and_read_once(rules: KvRules) -> None:
    """Two rollouts of one prompt of 4,096 tokens, four tokens each, side by side.

    prefill  4,096 x (1 + 0.04 x 2,048) = 339,640.32   once
    floors   2 chunks x 2 + 4 x 2       =      12.00
    KV       4,096 + 2 x (i - 1) tokens in the i-th step: 4,096 + 4,098 + 4,100 + 4,102 = 16,396
                                        =     163.96
    """
    yard = Yard()
    engine = yard.engine(rules)
    prefix = prefix_of(0, 4_096)
    for _ in range(2):
        yard.begin(engine, yard.stream(prefix, (4_096, 4)))
    yard.run()
    assert (engine.counts.prefill_steps, engine.counts.steps) == (2, 2 + 4)
    assert (engine.counts.prefilled_tokens, engine.counts.recomputed_tokens) == (4_096, 0)
    assert [at for _, at in yard.sampled_at] == [pytest.approx(339_816.28, abs=1e-6)] * 2
    assert engine.device.free == 400 - 256 - 2, "256 pages of the prefix, one page each behind it"


@BOTH
def test_an_engine_may_read_a_shared_prefix_for_each_sequence(rules: KvRules) -> None:
    """As above, but each of the two reads its own 4,096 tokens: 8,192 + 2 x (i - 1) in the i-th step.

    KV       8,192 + 8,194 + 8,196 + 8,198 = 32,780 tokens = 327.80 s instead of 163.96
    """
    yard = Yard()
    engine = yard.engine(rules, of=replace(ROUND, reads_prefix_once=False))
    prefix = prefix_of(0, 4_096)
    for _ in range(2):
        yard.begin(engine, yard.stream(prefix, (4_096, 4)))
    yard.run()
    assert [at for _, at in yard.sampled_at] == [pytest.approx(339_980.12, abs=1e-6)] * 2
    assert engine.counts.prefilled_tokens == 4_096


@pytest.mark.parametrize(
    ("rules", "pages"),
    [(PLAIN, 195), (RANKED, 199)],
    ids=["plain: four pages are reserved", "ranked"],
)
def test_one_page_short_is_one_eviction_of_the_unused_node(rules: KvRules, pages: int) -> None:
    """Of 400 pages an ended rollout and one in its tool hold 100 + 1 each: 198 are free.

    A turn that needs 199, the reserve included, is one page short. The prompt of the ended rollout
    and its page of output leave together: nothing refers to them.
    """
    yard = Yard()
    engine = yard.engine(rules)
    ended = yard.stream(prefix_of(0, 1_600), (1_600, 4), rank=RankClass.PROMOTED)
    in_tool = yard.stream(
        prefix_of(1, 1_600), (1_600, 4), (4, 4), rank=RankClass.CRITICAL, tool_s=1e9
    )
    late = yard.stream(prefix_of(2, pages * 16), (pages * 16, 4))
    yard.begin(engine, ended)
    yard.begin(engine, in_tool)
    while in_tool.phase is not Phase.GAP:
        assert yard.clock.run_next()
    assert (ended.phase, engine.device.free) == (Phase.ENDED, 198)
    yard.begin(engine, late)
    while late.phase is not Phase.ENDED:
        assert yard.clock.run_next()
    assert engine.device.counts.evictions == 1
    assert (ended.pages, ended.prefix.is_resident) == (0, False)
    assert (in_tool.pages, in_tool.prefix.is_resident) == (1, True)
    assert engine.device.free == 400 - 101 - (pages + 1)


@pytest.mark.parametrize("prompt", [5_376, 5_600, 6_300])
@pytest.mark.parametrize("host_tokens", [0, 25_600])
def test_a_turn_that_needs_nearly_the_whole_of_an_empty_device_runs(
    prompt: int, host_tokens: int
) -> None:
    """400 pages are 6,400 tokens; what is set aside for growth and for entry is more than is left."""
    yard = Yard()
    engine = yard.engine(RANKED, host_tokens=host_tokens)
    yard.begin(engine, yard.stream(prefix_of(0, 800), (prompt, 4)))
    yard.run()
    assert len(yard.sampled_at) == 1
    assert (engine.counts.prefilled_tokens, engine.counts.sampled_tokens) == (prompt, 4)


def test_turns_that_fit_alone_only_run_one_after_the_other_the_better_one_first() -> None:
    """Each of three wants more than half of the device; their pages go for each other's."""
    yard = Yard()
    engine = yard.engine(RANKED)
    ranks = (RankClass.NORMAL, RankClass.CRITICAL, RankClass.PROMOTED)
    streams = [
        yard.stream(prefix_of(n, 16), (5_600, 4), (64, 400), rank=rank)
        for n, rank in enumerate(ranks)
    ]
    for stream in streams:
        yard.begin(engine, stream)
    yard.run()
    assert len(yard.sampled_at) == 6
    ends = [name for name, _ in yard.sampled_at]
    assert ends.index(str(streams[2].rollout_id)) < ends.index(str(streams[0].rollout_id))


def test_a_long_tool_under_pressure_is_one_offload_and_one_reload_of_known_seconds() -> None:
    """Numbers of the 8B on one H100, on a device of 400 pages of 16 tokens.

    A samples 3,200 tokens behind a prompt of 1,600 (300 pages) and runs a tool for 60 s. N has a
    prompt of 100 pages, all that is free, and grows by 50: 800 tokens of A go to the host, once. They
    come back in 800 x 147,456 / 50e9 = 2.359296 ms. With F = 16.4e9 / (3.35e12 x 0.7) + 0.003 s a
    step, R = 147,456 / (3.35e12 x 0.7) s a token read, and n x (16.4e9 + 589,824 c) / 494e12 s of
    prefill:

    first    F + P(1,600 at 800) + 3,200 F + (3,200 x 1,600 + 3,200 x 3,199 / 2) R
    tool     60
    reload   0.002359296
    second   F + P(16 at 4,808) + 8 F + (8 x 4,816 + 28) R
    """
    yard = Yard()
    engine = yard.engine(RANKED, host_tokens=25_600, of=fixed().engines["8b-h100"])
    first = yard.stream(prefix_of(0, 1_600), (1_600, 3_200), (16, 8), tool_s=60.0)
    neighbour = yard.stream(prefix_of(1, 1_600), (1_600, 800), rank=RankClass.CRITICAL)
    yard.begin(engine, first)
    while first.phase is not Phase.GAP:
        assert yard.clock.run_next()
    yard.begin(engine, neighbour)
    yard.run()

    floor, read = 16.4e9 / (3.35e12 * 0.7) + 0.003, 147_456 / (3.35e12 * 0.7)
    prefill_1 = 1_600 * (16.4e9 + 589_824 * 800) / 494e12
    prefill_2 = 16 * (16.4e9 + 589_824 * 4_808) / 494e12
    first_s = floor + prefill_1 + 3_200 * floor + (3_200 * 1_600 + 3_200 * 3_199 // 2) * read
    second_s = floor + prefill_2 + 8 * floor + (8 * 4_816 + 28) * read
    ends = [at for name, at in yard.sampled_at if name == first.rollout_id]
    tiers = engine.device.counts
    assert (tiers.offloads, tiers.offloaded_tokens) == (1, 800)
    assert (tiers.reloads, tiers.reloaded_tokens) == (1, 800)
    assert ends[0] == pytest.approx(first_s, rel=1e-12)
    assert ends[1] == pytest.approx(first_s + 60.0 + 0.002359296 + second_s, rel=1e-12)
    assert engine.counts.recomputed_tokens == 0


def test_a_long_tool_without_pressure_moves_nothing() -> None:
    yard = Yard()
    engine = yard.engine(RANKED, host_tokens=25_600, of=fixed().engines["8b-h100"])
    yard.begin(engine, yard.stream(prefix_of(0, 1_600), (1_600, 3_200), (16, 8), tool_s=60.0))
    yard.run()
    assert (engine.device.counts.offloads, engine.device.counts.reloads) == (0, 0)
    assert engine.counts.prefilled_tokens == 1_616


@pytest.mark.parametrize(
    ("asked", "stalls"),
    [([], 0), ([1], 1), ([1, 1], 1), ([1, 2], 2)],
    ids=["no version", "one", "the same again", "two"],
)
def test_the_stall_of_a_weight_sync_is_added_once_per_version(
    asked: list[int], stalls: int
) -> None:
    """16 tokens of prompt, ten sampled; versions are asked for at 30 s and 33 s, 5 s each.

    prefill  16 x (1 + 0.04 x 8) + 2          = 23.12
    decode   10 x 2 + (16 + 17 + ... + 25)/100 = 22.05
    """
    yard = Yard()
    engine = yard.engine(RANKED)
    yard.begin(engine, yard.stream(prefix_of(0, 16), (16, 10)))
    for place, version in enumerate(asked):
        yard.clock.at(30.0 + 3.0 * place, lambda version=version: engine.sync(version))  # type: ignore[misc]
    yard.run()
    assert [at for _, at in yard.sampled_at] == [pytest.approx(45.17 + 5.0 * stalls, abs=1e-9)]
    assert [version for version, _ in yard.synced_at] == sorted(set(asked))
    assert engine.counts.stalled_s == 5.0 * stalls


def test_a_context_that_left_whole_is_reloaded_and_only_its_prompt_computed_again() -> None:
    """As above, but N takes all 400 pages: 3,200 tokens come back, the 1,600 of the prompt do not.

    The host tier holds what is behind a group's prefix; the prefix goes with its last holder.
    """
    yard = Yard()
    engine = yard.engine(RANKED, host_tokens=25_600, of=fixed().engines["8b-h100"])
    first = yard.stream(prefix_of(0, 1_600), (1_600, 3_200), (16, 8), tool_s=60.0)
    neighbour = yard.stream(prefix_of(1, 4_800), (4_800, 1_600), rank=RankClass.CRITICAL)
    yard.begin(engine, first)
    while first.phase is not Phase.GAP:
        assert yard.clock.run_next()
    yard.begin(engine, neighbour)
    yard.run()
    tiers = engine.device.counts
    assert (tiers.offloaded_tokens, tiers.reloaded_tokens) == (3_200, 3_200)
    assert engine.counts.recomputed_tokens == 1_600
    assert engine.counts.prefilled_tokens == 1_600 + 4_800 + 1_600 + 16


def test_a_sibling_takes_over_the_prefix_of_one_that_left() -> None:
    """The first of two is taken away in its first chunk; the other computes all of the prompt.

    begun    2,048 x (1 + 0.04 x 1,024) + 2  =  85,936.08   the step under way ends
    prefill  4,096 x (1 + 0.04 x 2,048) + 4  = 339,644.32
    decode   2 + 40.96                        =      42.96
    """
    yard = Yard()
    engine = yard.engine(RANKED)
    prefix = prefix_of(0, 4_096)
    maker, sibling = (yard.stream(prefix, (4_096, 1)) for _ in range(2))
    yard.begin(engine, maker)
    yard.begin(engine, sibling)
    yard.clock.at(1.0, lambda: engine.leave(maker, keep_unused=False))
    yard.run()
    assert [name for name, _ in yard.sampled_at] == [sibling.rollout_id]
    assert yard.sampled_at[0][1] == pytest.approx(85_936.08 + 339_644.32 + 42.96, abs=1e-6)


@pytest.mark.parametrize("demotes", [True, False], ids=["demotion", "no demotion"])
def test_high_demand_above_the_device_costs_a_context_only_without_demotion(demotes: bool) -> None:
    """A and B, in their tools, hold 150 + 1 of 400 pages each; C needs 100 + 1. All are critical.

    C's claim is 101 pages, 16 of growth and 11 % of the device (44): 161 against the 98 left. With
    demotion C is the one that becomes low: it waits until A has ended, and nothing is computed twice.
    Without, it is 3 pages short and takes them from the least recently used: A, the best-ranked, loses
    its page of output and with it the prompt that nobody else holds, 2,400 + 4 tokens.
    """
    yard = Yard()
    engine = yard.engine(replace(RANKED, demotion=demotes))
    first, second = (
        yard.stream(prefix_of(n, 2_400), (2_400, 4), (4, 4), rank=RankClass.CRITICAL, tool_s=1e9)
        for n in range(2)
    )
    late = yard.stream(prefix_of(2, 1_600), (1_600, 4), rank=RankClass.CRITICAL)
    yard.begin(engine, first)
    yard.begin(engine, second)
    while not first.phase is second.phase is Phase.GAP:
        assert yard.clock.run_next()
    assert engine.device.free == 400 - 2 * 151
    yard.begin(engine, late)
    while first.phase is Phase.GAP and late.phase is not Phase.ENDED:
        assert yard.clock.run_next()
    assert (first.pages, late.phase) == ((1, Phase.WAITING) if demotes else (0, Phase.ENDED))
    assert second.pages == 1
    yard.run()
    assert engine.counts.recomputed_tokens == (0 if demotes else 2_404)
