"""What an engine counts of its keys is what happened: found, computed, computed again, brought back."""

import time
from random import Random

import pytest

from domain.engine import GenRequest
from domain.ids import RolloutId
from kv.ranks import RankClass, compose
from tests.support.engines import request
from tests.unit.workers.rollout.embedded.cores import (
    Answers,
    assert_right,
    assert_whole,
    build,
    drain,
    submit,
    turn,
)
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.key_stats import key_stats, retained
from workers.rollout.embedded.pages.nodes import Place
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes
from workers.rollout.embedded.turns import Running

WORSE = float(compose(RankClass.NORMAL, 9, 0))
BETTER = float(compose(RankClass.PROMOTED, 0, 0))

HOST = TierSizes(host_pages=64)


def ids(count: int, step: int = 7) -> tuple[int, ...]:
    return tuple(i * step % 17 for i in range(count))


def computed_once(core: Core) -> int:
    """Tokens prefilled, less those prefilled again."""
    return core.counters.prefilled_tokens - core.keys.recomputed_tokens


def fetches_everything(core: Core) -> None:
    """Computing is measured to be slow: whatever is kept outside is worth fetching."""
    note = core.keys.note_prefill
    core.keys.note_prefill = lambda tokens, seconds: note(tokens, seconds + tokens)  # type: ignore[method-assign]


def counts_what_is_computed_twice(core: Core) -> list[int]:
    """Tokens that are prefilled for a turn that had them, chunk by chunk."""
    count, twice = core.keys.count_prefill, []

    def counted(running: Running, start: int, end: int) -> None:
        twice.append(max(min(running.reached_tokens, end) - start, 0))
        count(running, start, end)

    core.keys.count_prefill = counted  # type: ignore[method-assign]
    return twice


def push_out(core: Core, answers: Answers, asked: dict[str, GenRequest], steps: int) -> None:
    """The turn that runs is parked after so many steps, for one that needs nearly all pages."""
    for _ in range(steps):
        core.step()
    asked["better"] = request(
        "b", ids(85, 3), request_id="better", rank=BETTER, temperature=0.0, max_tokens=8
    )
    submit(core, asked["better"], answers)
    drain(core)


def fetched_pages(core: Core) -> int:
    assert core.keys.tiers is not None
    moved = core.keys.tiers.counters.bytes_moved
    return moved[Place.HOST, Place.DEVICE] // core.keys.arena.shape.page_bytes


def test_a_cold_turn_that_was_parked_and_fetched_back_had_nothing_cached() -> None:
    core = build(slots=1, pages=6, clock=time.monotonic, tiers=HOST)
    fetches_everything(core)
    answers: Answers = {}
    asked = {
        "low": request("l", ids(60), request_id="low", rank=WORSE, temperature=0.0, max_tokens=20)
    }
    try:
        submit(core, asked["low"], answers)
        push_out(core, answers, asked, 6)
        assert fetched_pages(core) > 0
    finally:
        core.close()
    assert_right(asked, answers)
    assert [answers[name].cached_tokens for name in asked] == [0, 0]
    assert core.counters.cached_tokens == 0
    assert computed_once(core) == 59 + 84
    assert key_stats(core.keys, 0).restored_tokens == 16 * fetched_pages(core)


def test_what_another_turn_computes_for_one_that_lost_its_pages_is_not_found_twice() -> None:
    core = build(slots=2, pages=6)
    answers: Answers = {}
    prompt = ids(20)
    turn(core, "first", ids=prompt, rank=WORSE, max_tokens=2)
    submit(core, request("l", prompt, request_id="low", rank=WORSE, max_tokens=20), answers)
    for _ in range(3):
        core.step()
    submit(core, request("b", ids(85, 3), rank=BETTER, max_tokens=8), answers)
    while not answers:
        core.step()
    core.release(RolloutId("ro_b"))
    same = request("n", (*prompt, 1), rank=BETTER, max_tokens=20)
    submit(core, same, answers)
    drain(core)
    assert core.counters.preemptions == 1
    assert answers["low"].cached_tokens == 16
    assert core.counters.cached_tokens == sum(one.cached_tokens for one in answers.values())


def test_a_parked_turn_gets_the_pages_that_it_sampled_back_from_the_host() -> None:
    core = build(slots=1, pages=6, clock=time.monotonic, tiers=HOST)
    fetches_everything(core)
    answers: Answers = {}
    low = request("l", ids(17), request_id="low", rank=WORSE, temperature=0.0, max_tokens=70)
    asked = {"low": low}
    try:
        submit(core, low, answers)
        push_out(core, answers, asked, 60)
        assert fetched_pages(core) == (17 + 60 - 1) // 16
        assert core.keys.recomputed_tokens < 16, "only of the page that was not full"
    finally:
        core.close()
    assert_right(asked, answers)
    alone = turn(build(), "low", ids=ids(17), temperature=0.0, max_tokens=70)
    assert answers["low"].token_ids == alone.token_ids


def test_a_turn_parked_in_its_prompt_computed_nothing_of_the_rest_before() -> None:
    core = build(slots=1, pages=6)
    answers: Answers = {}
    asked = {"low": request("l", ids(40), request_id="low", rank=WORSE, max_tokens=4)}
    submit(core, asked["low"], answers)
    core._admit()
    push_out(core, answers, asked, 0)
    assert core.counters.preemptions == 1
    assert core.keys.recomputed_tokens == 0
    assert computed_once(core) == 39 + 84


def test_a_rewritten_prompt_is_not_computed_again() -> None:
    core = build()
    turn(core, "a", ids=(1, 2, 3, 4) * 12, rollout_id="same")
    turn(core, "b", ids=(5, 6, 7, 8) * 12, rollout_id="same")
    assert core.keys.recomputed_tokens == 0


def test_the_prefix_of_a_group_that_was_evicted_is_computed_again_by_another_member() -> None:
    core = build(slots=1, pages=6)
    turn(core, "a", ids=ids(48))
    turn(core, "x", ids=ids(85, 3))
    turn(core, "b", ids=ids(48))
    assert core.counters.cached_tokens == 0
    assert core.keys.recomputed_tokens == 32, "whole pages of the 47 tokens that prefill computes"


def test_the_last_page_of_a_rollout_counts_for_itself_though_it_was_not_full() -> None:
    core = build(slots=1, pages=6)
    first = turn(core, "a", ids=ids(20), rollout_id="a", max_tokens=4)
    turn(core, "x", ids=ids(85, 3))
    turn(core, "b", ids=(*ids(20), *first.token_ids, 1, 2), rollout_id="a", max_tokens=4)
    assert core.keys.recomputed_tokens == 20 + 4 - 1


def test_a_parked_turn_and_several_turns_of_a_rollout_are_not_retained_rollouts() -> None:
    core = build(slots=1)
    answers: Answers = {}
    for name, rank in (("low", WORSE), ("better", BETTER)):
        submit(core, request(name, rank=rank, max_tokens=20), answers)
        core.step()
    assert core.counters.preemptions == 1
    assert retained(core.keys) == 0
    drain(core)
    assert retained(core.keys) == 2
    forks = build(slots=4)
    turn(forks, "idle", max_tokens=2)
    for number in range(3):
        submit(forks, request(f"f{number}", rollout_id="same", max_tokens=20), {})
    forks.step()
    assert forks.active == 3
    assert retained(forks.keys) == 1


@pytest.mark.parametrize("tiers", [NO_TIERS, HOST], ids=["no tiers", "host"])
@pytest.mark.parametrize("seed", range(12))
def test_what_was_computed_and_what_was_found_are_the_prompts(seed: int, tiers: TierSizes) -> None:
    """Also where turns lose their slots: what is computed twice for a turn is counted apart."""
    chance = Random(seed)
    core = build(chance.choice((1, 2, 4)), chance.choice((6, 8, 14, 40)), time.monotonic, tiers)
    fetches_everything(core)
    twice = counts_what_is_computed_twice(core)
    answers: Answers = {}
    asked: dict[str, GenRequest] = {}
    history: dict[str, tuple[int, ...]] = {}
    try:
        for number in range(30):
            rollout = f"ro_{chance.randrange(5)}"
            prompt = history.get(rollout, ids(chance.choice((5, 17, 40)), chance.choice((3, 7))))
            one = request(
                str(number),
                (*prompt, chance.randrange(17)),
                request_id=str(number),
                rollout_id=rollout,
                rank=float(compose(chance.choice(list(RankClass)), number, 0)),
                max_tokens=chance.choice((1, 5, 20)),
            )
            asked[one.request_id] = one
            submit(core, one, answers)
            for _ in range(chance.randrange(12)):
                core.step()
                assert_whole(core)
            done = answers.get(str(number))
            if done is not None and len(one.token_ids) < 50:
                history[rollout] = one.token_ids + done.token_ids
        drain(core)
    finally:
        core.close()
    assert_right(asked, answers)
    prompts = sum(len(one.token_ids) - 1 for one in asked.values())
    for name, answer in answers.items():
        assert answer.cached_tokens < len(asked[name].token_ids)
    assert sum(one.cached_tokens for one in answers.values()) == core.counters.cached_tokens
    repeated = core.counters.prefilled_tokens + core.counters.cached_tokens - prompts
    assert repeated == sum(twice)
    assert repeated == 0 or core.counters.retractions + core.counters.preemptions
    assert repeated <= core.keys.recomputed_tokens
