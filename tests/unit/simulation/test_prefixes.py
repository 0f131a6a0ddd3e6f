"""A group's prefix on a modelled device: a node of its own, which leaves when its time comes.

As in a radix tree, pages behind a prompt may go while the prompt stays for the siblings.
"""

import random
from functools import partial
from typing import Final

import pytest

from kv.ranks import RankClass
from kv.rules import PLAIN, RANKED, KvRules
from simulation.engine import ModelledEngine
from simulation.stream import Phase, Stream
from tests.unit.simulation.modelled import PAGE_TOKENS, Yard, prefix_of

BOTH: Final = pytest.mark.parametrize("rules", [PLAIN, RANKED], ids=["plain", "ranked"])

PROMPT: Final = 1_600
"""100 pages."""


def in_tools(yard: Yard, engine: ModelledEngine, *, tool_s: float = 1e9) -> list[Stream]:
    """A group of two whose tools run: 100 pages of prompt and one behind it each."""
    prefix = prefix_of(0, PROMPT)
    members = [yard.stream(prefix, (PROMPT, 4), (4, 4), tool_s=tool_s) for _ in range(2)]
    for member in members:
        yard.begin(engine, member)
    while any(member.phase is not Phase.GAP for member in members):
        assert yard.clock.run_next()
    return members


def run_beside(yard: Yard, engine: ModelledEngine, pages: int) -> None:
    """Another group's critical turn that wants so many pages runs to its end."""
    prompt = pages * PAGE_TOKENS - PAGE_TOKENS
    other = yard.stream(prefix_of(1, prompt), (prompt, 4), rank=RankClass.CRITICAL)
    yard.begin(engine, other)
    while other.phase is not Phase.ENDED:
        assert yard.clock.run_next()


@BOTH
def test_a_prompt_outlives_the_pages_behind_it(rules: KvRules) -> None:
    """Of 400 pages 298 are free. Both contexts' ends go, 4 tokens each; their prompt stays."""
    yard = Yard()
    engine = yard.engine(rules)
    members = in_tools(yard, engine)
    run_beside(yard, engine, 300 - 3 * (rules is PLAIN))
    prefix = members[0].prefix
    assert [member.pages for member in members] == [0, 0]
    assert (prefix.is_resident, prefix.is_idle, prefix.streams) == (True, True, 0)
    yard.run()
    assert engine.counts.recomputed_tokens == 2 * 4


@BOTH
def test_a_prompt_that_had_to_go_is_computed_once_more_for_all_siblings(rules: KvRules) -> None:
    """The neighbour wants 320 pages: 298 are free, the ends give two, the prompt the rest."""
    yard = Yard()
    engine = yard.engine(rules)
    members = in_tools(yard, engine)
    run_beside(yard, engine, 320)
    assert not members[0].prefix.is_resident
    yard.run()
    assert engine.counts.recomputed_tokens == PROMPT + 2 * 4


@BOTH
def test_a_prompt_is_not_evicted_for_a_turn_that_stands_on_it(rules: KvRules) -> None:
    """Both ends went. One comes back with 4,784 new tokens, the whole device with its prompt."""
    yard = Yard()
    engine = yard.engine(rules)
    prefix = prefix_of(0, PROMPT)
    growing = yard.stream(prefix, (PROMPT, 4), (4_500, 4), tool_s=1e6)
    staying = yard.stream(prefix, (PROMPT, 4), (4, 4), tool_s=1e7)
    for member in (growing, staying):
        yard.begin(engine, member)
    while any(member.phase is not Phase.GAP for member in (growing, staying)):
        assert yard.clock.run_next()
    run_beside(yard, engine, 300 - 3 * (rules is PLAIN))
    assert prefix.is_idle
    yard.run()
    assert engine.counts.recomputed_tokens == 2 * 4


def test_by_recency_a_prompt_is_as_old_as_its_last_use() -> None:
    """The prompt of A was used before the pages of B: it goes first, whatever their ranks are."""
    yard = Yard()
    engine = yard.engine(PLAIN)
    members = in_tools(yard, engine)
    later = yard.stream(prefix_of(2, 16), (1_616, 4), (4, 4), rank=RankClass.NORMAL, tool_s=1e6)
    yard.begin(engine, later)
    while later.phase is not Phase.GAP:
        assert yard.clock.run_next()
    run_beside(yard, engine, 250)
    assert (members[0].prefix.is_resident, later.pages) == (False, 101)


@pytest.mark.parametrize("better", [True, False], ids=["prompt ranks better", "prompt ranks worse"])
def test_by_class_a_prompt_ranks_as_the_best_of_its_group(better: bool) -> None:
    """198 pages are free, 250 are wanted: the ends and the worse of prompt and context."""
    yard = Yard()
    engine = yard.engine(RANKED)
    members = in_tools(yard, engine)
    later = yard.stream(prefix_of(2, 16), (1_616, 4), (4, 4), tool_s=1e9)
    yard.begin(engine, later)
    while later.phase is not Phase.GAP:
        assert yard.clock.run_next()
    for member in members:
        engine.device.shed(member, member.pages)
    assert members[0].prefix.is_idle
    ranks = {members[0]: 0 if better else later.rank + 2, members[1]: later.rank + 3}
    engine.rerank(ranks)
    run_beside(yard, engine, 250)
    assert members[0].prefix.is_resident is better
    assert (later.pages == 101) is not better


@BOTH
def test_the_last_of_a_group_takes_the_prompt_along(rules: KvRules) -> None:
    """Nobody is left who knows it: its pages are free at once."""
    yard = Yard()
    engine = yard.engine(rules)
    members = in_tools(yard, engine)
    for member in members:
        engine.device.shed(member, member.pages)
    engine.leave(members[0], keep_unused=True)
    assert engine.device.free == 300
    engine.leave(members[1], keep_unused=True)
    assert engine.device.free == 400
    assert not engine.device.idle


def test_a_prompt_that_was_never_computed_leaves_nothing_behind() -> None:
    """Its maker is retracted or taken away in the first chunk, and no sibling waits for it."""
    yard = Yard()
    engine = yard.engine(RANKED)
    maker, sibling = (yard.stream(prefix_of(0, 4_096), (4_096, 1)) for _ in range(2))
    yard.begin(engine, maker)
    engine.join(sibling)
    yard.clock.at(1.0, lambda: engine.leave(maker, keep_unused=False))
    yard.run()
    assert engine.device.free == 400


@BOTH
@pytest.mark.parametrize("host_tokens", [0, 6_400])
@pytest.mark.parametrize("seed", range(3))
def test_every_page_is_free_or_held_by_one(rules: KvRules, host_tokens: int, seed: int) -> None:
    """Twelve groups of four on a device that holds two or three: after every event."""
    yard = Yard()
    engine = yard.engine(rules, host_tokens=host_tokens)
    draw = random.Random(seed)
    streams: list[Stream] = []
    for number in range(12):
        prefix = prefix_of(number, draw.randrange(16, 1_600))
        for _ in range(4):
            turns = [(prefix.tokens + draw.randrange(300), draw.randrange(1, 300))]
            turns += [(draw.randrange(1, 300), draw.randrange(1, 300)) for _ in range(3)]
            streams.append(yard.stream(prefix, *turns, tool_s=draw.choice([10.0, 1e3, 1e5])))
    for stream in streams:
        yard.clock.at(draw.uniform(0, 1e5), partial(yard.begin, engine, stream))
    events = idle = 0
    while yard.clock.run_next():
        prefixes = {id(s.prefix): s.prefix for s in streams if s.prefix.is_resident}
        held = sum(s.pages for s in streams) + sum(p.pages for p in prefixes.values())
        assert engine.device.free + held == 400
        assert {id(p) for p in prefixes.values() if p.is_idle} == set(
            map(id, engine.device.idle.values())
        )
        events, idle = events + 1, idle + bool(engine.device.idle)
    assert all(stream.phase is Phase.ENDED for stream in streams)
    assert events > 500
    assert idle > 0 or rules is RANKED, "by rank a prompt follows its group's last page"
