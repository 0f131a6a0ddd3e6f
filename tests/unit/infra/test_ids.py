"""Ids sort by creation, repeat under the same seed, and never collide within a millisecond."""

import random
from datetime import timedelta

from infra.clock import ManualClock
from infra.ids import IdSource, encode


def source(clock: ManualClock, seed: int = 0) -> IdSource:
    return IdSource(clock, random.Random(seed))


def test_ids_of_one_millisecond_rise_strictly(clock: ManualClock) -> None:
    ids = source(clock)
    drawn = [ids.new("job") for _ in range(1000)]
    assert drawn == sorted(set(drawn))


def test_later_ids_sort_after_earlier_ones(clock: ManualClock) -> None:
    ids = source(clock)
    first = ids.new("job")
    clock.advance(0.001)
    assert first < ids.new("job")


def test_ids_still_rise_when_the_wall_clock_steps_back(clock: ManualClock) -> None:
    ids = source(clock)
    clock.advance(10.0)
    first = ids.new("job")
    clock._start -= timedelta(hours=1)
    assert first < ids.new("job")


def test_the_same_clock_and_seed_give_the_same_ids(clock: ManualClock) -> None:
    assert source(clock, 7).new("att") == source(clock, 7).new("att")
    assert source(clock, 7).new("att") != source(clock, 8).new("att")


def test_an_id_is_its_prefix_and_26_characters(clock: ManualClock) -> None:
    prefix, _, ulid = source(clock).new("ckpt").partition("_")
    assert (prefix, len(ulid)) == ("ckpt", 26)


def test_encoding_pads_and_keeps_order() -> None:
    assert encode(0, 3) == "000"
    assert encode(31, 2) < encode(32, 2)
