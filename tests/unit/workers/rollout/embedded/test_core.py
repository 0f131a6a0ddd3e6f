"""The core stepped by hand: admission, rows, eviction, chunks."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.engine import EngineRefused, Finish, GenRequest, GenResult, Refusal, RequestId
from domain.ids import RolloutId
from tests.support.engines import CHARACTERS, CONTEXT, decoder, reference_logprobs, request
from workers.models.vocab import char_vocabulary
from workers.rollout.embedded import core as core_module
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.packing import pack

MODEL = decoder()
PACKED = pack(MODEL.config, MODEL.state_dict(), torch.device("cpu"))

Answers = dict[str, GenResult]


def build(slots: int = 2, rows: int = 4, clock: Callable[[], float] = lambda: 0.0) -> Core:
    vocabulary = char_vocabulary(CHARACTERS)
    return Core(PACKED, vocabulary, slots, rows, version=0, weights_sha="v0", clock=clock)


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
    """The invariants that the module of the rows promises."""
    rows, n = core.rows, core.active
    assert n <= core.slots
    assert all(n <= row < rows.count for row in rows.idle)
    owners = [idle.rollout_id for idle in rows.idle.values()]
    assert len(owners) == len(set(owners))
    assert (rows.kv_length[:n] < rows.length[:n]).all()
    used = {row for row in range(rows.count) if rows.kv_length[row] > 0}
    assert used <= set(range(n)) | set(rows.idle)


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
    monkeypatch.setattr(core_module, "PREFILL_CHUNK", 8)
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


def test_the_least_useful_keys_are_evicted_first() -> None:
    core = build(slots=1, rows=3)
    for name, rank in (("urgent", 1.0), ("later", 9.0)):
        turn(core, name, rollout_id=name, rank=rank)
    turn(core, "third", rollout_id="third", rank=5.0)
    turn(core, "fourth", rollout_id="fourth", rank=0.0)
    kept = {idle.rollout_id for idle in core.rows.idle.values()}
    assert kept == {"urgent", "third", "fourth"}
    assert core.counters.evictions == 1


def test_retained_keys_are_evicted_last_until_their_time_is_over() -> None:
    now = 0.0
    core = build(slots=1, rows=2, clock=lambda: now)
    turn(core, "a", rollout_id="a", rank=9.0)
    core.retain(RolloutId("a"), ttl_s=10.0)
    turn(core, "b", rollout_id="b", rank=1.0)
    turn(core, "c", rollout_id="c", rank=1.0)
    assert {idle.rollout_id for idle in core.rows.idle.values()} == {"a", "c"}
    now = 11.0
    turn(core, "d", rollout_id="d", rank=1.0)
    assert {idle.rollout_id for idle in core.rows.idle.values()} == {"c", "d"}


def test_a_release_during_a_turn_drops_its_keys_at_the_end() -> None:
    core = build()
    answers: Answers = {}
    submit(core, request("a", rollout_id="ro"), answers)
    core.step()
    core.release(RolloutId("ro"))
    drain(core)
    assert answers["req_a"].finish is Finish.LENGTH
    assert core.rows.idle == {}
    assert int(core.rows.kv_length.sum()) == 0


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
    assert core.rows.idle == {}
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
    core = build(slots, slots + spare)
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
