"""The core stepped by hand: chunks, eviction, aborts, whatever order the calls come in."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.engine import (
    EngineRefused,
    Finish,
    GenRequest,
    KvMode,
    Refusal,
    RequestId,
)
from domain.ids import RolloutId
from kv.ranks import RankClass, compose
from tests.support.engines import CONTEXT, decoder, reference_logprobs, request
from tests.unit.workers.rollout.embedded.cores import (
    LONG,
    MODEL,
    PACKED,
    Answers,
    assert_whole,
    build,
    drain,
    pages_of,
    submit,
    turn,
)
from workers.rollout.embedded import core as core_module
from workers.rollout.embedded import passes
from workers.rollout.embedded.packing import pack


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


def test_the_worst_ranked_keys_are_evicted_first() -> None:
    core = build(slots=1, pages=12)
    for name, rank in (("urgent", 1), ("later", 9), ("third", 5)):
        turn(core, name, ids=(ord(name[0]) % 17, *LONG), rollout_id=name, rank=rank)
    turn(core, "fourth", ids=(16, 16, *LONG), rollout_id="fourth", rank=0, max_tokens=20)
    assert pages_of(core, "urgent") == pages_of(core, "third") == 3
    assert pages_of(core, "later") < 3
    assert sum(core.keys.table.tree.evicted.values()) > 0


def test_retained_keys_are_evicted_last_until_their_time_is_over() -> None:
    now = 0.0
    core = build(slots=1, pages=9, clock=lambda: now)
    turn(core, "a", ids=(1, *LONG), rollout_id="a", rank=9)
    core.retain(RolloutId("a"), ttl_s=10.0)
    turn(core, "b", ids=(2, *LONG), rollout_id="b", rank=1)
    turn(core, "c", ids=(3, *LONG), rollout_id="c", rank=1)
    turn(core, "d", ids=(4, *LONG), rollout_id="d", rank=1)
    assert pages_of(core, "a") == 3
    now = 11.0
    turn(core, "e", ids=(5, *LONG), rollout_id="e", rank=1)
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


def test_dropped_keys_are_computed_anew_also_under_the_weights_a_turn_started_with() -> None:
    core = build()
    answers: Answers = {}
    asked = request("a", max_tokens=60)
    submit(core, asked, answers)
    other = decoder(1)
    packed = pack(other.config, other.state_dict(), torch.device("cpu"))
    for _ in range(20):
        core.step()
    core.swap_weights(packed, 1, "v1")
    core.drop_stale_keys(KvMode.KEEP)
    for _ in range(20):
        core.step()
    core.swap_weights(PACKED, 2, "v0")
    core.drop_stale_keys(KvMode.DROP)
    drain(core)
    result = answers["req_a"]
    assert [span.start for span in result.version_spans] == [0, 20, 40]
    expected = reference_logprobs(MODEL, asked.token_ids + result.token_ids)
    rest = expected[len(asked.token_ids) - 1 :][40:]
    assert torch.allclose(torch.tensor(result.logprobs[40:]), rest, atol=2e-5, rtol=0)


def any_rank(rng: Random) -> int:
    """Of any class; ranks of one class meet."""
    return compose(rng.choice(list(RankClass)), rng.randrange(3), 0)


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
            rank=any_rank(rng),
            seed=number,
            max_tokens=rng.randint(1, CONTEXT - len(ids)),
            stop_token_ids=(16,),
        )
        # Rollouts of two tenants; the two share nothing, least of all a slot of a running turn.
        one = replace(one, tenant=f"org_{int(rollout[-1]) % 2}")
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
            core.set_rank({RolloutId(f"ro_{rng.randrange(5)}"): any_rank(rng)})
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
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 4), spare=st.integers(0, 3))
def test_no_longer_order_of_calls_does_either(seed: int, slots: int, spare: int) -> None:
    play_random_calls(seed, slots, spare)
