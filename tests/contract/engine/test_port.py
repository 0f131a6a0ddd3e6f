"""What every engine does, whatever makes its tokens."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from domain.engine import (
    Capability,
    EngineRefused,
    Finish,
    GenResult,
    PauseMode,
    Refusal,
    RequestId,
    SyncFailed,
    TokenChunk,
)
from domain.ids import RolloutId
from tests.contract.engine.conftest import LONG_CONTEXT, Make, Small
from tests.support.engines import decoder, published, request
from tests.support.waiting import eventually
from workers.rollout.embedded.engine import EmbeddedEngine
from workers.rollout.ports import Engine

LONG: dict[str, Any] = {"rollout_id": "ro_long", "max_tokens": 4000}
"""A turn that is still running when the test acts on it."""


async def test_an_answer_has_one_logprob_and_one_version_per_token(make: Make) -> None:
    result = await make(2).generate(request())
    assert result.token_ids
    assert len(result.logprobs) == len(result.token_ids) == len(result.versions)
    assert result.finish in (Finish.STOP, Finish.LENGTH)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ids": ()}, Refusal.EMPTY_PROMPT),
        ({"ids": (1, 20)}, Refusal.TOKEN_OUT_OF_RANGE),
        ({"ids": (1, -1)}, Refusal.TOKEN_OUT_OF_RANGE),
        ({"stop_token_ids": (99,)}, Refusal.TOKEN_OUT_OF_RANGE),
        ({"max_tokens": 0}, Refusal.MAX_TOKENS),
        ({"max_tokens": -1}, Refusal.MAX_TOKENS),
        ({"max_tokens": LONG_CONTEXT - 6}, Refusal.CONTEXT_OVERFLOW),
        ({"temperature": -1.0}, Refusal.BAD_SAMPLING),
        ({"temperature": float("nan")}, Refusal.BAD_SAMPLING),
        ({"temperature": 1e-39}, Refusal.BAD_SAMPLING),
        ({"temperature": 1e-320}, Refusal.BAD_SAMPLING),
        ({"top_p": 0.0}, Refusal.BAD_SAMPLING),
        ({"top_p": 1e-46}, Refusal.BAD_SAMPLING),
        ({"top_p": float("nan")}, Refusal.BAD_SAMPLING),
        ({"stop": ("",)}, Refusal.BAD_SAMPLING),
        ({"seed": -1}, Refusal.BAD_SAMPLING),
        ({"weights_sha": "other"}, Refusal.WEIGHTS_MISMATCH),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_and_the_engine_goes_on(
    make: Make, fields: dict[str, Any], reason: Refusal
) -> None:
    engine = make(2)
    with pytest.raises(EngineRefused) as refused:
        await engine.generate(request("bad", **fields))
    assert refused.value.reason is reason
    assert (await engine.generate(request("good"))).token_ids
    assert engine.stats().refused == 1


async def test_a_prompt_that_just_fits_is_served(make: Make) -> None:
    ids = (1,) * (LONG_CONTEXT - 3)
    result = await make(1).generate(request(ids=ids, max_tokens=3))
    assert len(result.token_ids) == 3


async def test_an_open_request_id_is_refused_a_second_time(make: Make) -> None:
    engine = make(1)
    first = asyncio.create_task(engine.generate(request(request_id="r", **LONG)))
    await eventually(lambda: engine.stats().active)
    with pytest.raises(EngineRefused) as refused:
        await engine.generate(request("b", request_id="r"))
    assert refused.value.reason is Refusal.DUPLICATE_REQUEST
    await engine.abort([RequestId("r")])
    assert (await first).finish is Finish.ABORT


async def test_waiting_turns_start_in_order_of_rank(make: Make) -> None:
    engine = make(1)
    await engine.pause(PauseMode.KEEP)
    order: list[str] = []

    async def run(name: str, rank: int) -> None:
        await engine.generate(request(name, rank=rank))
        order.append(name)

    tasks = [asyncio.create_task(run(n, r)) for n, r in [("a", 3), ("b", 1), ("c", 2)]]
    await eventually(lambda: engine.stats().waiting == 3)
    assert sorted(engine.waiting()) == ["ro_a", "ro_b", "ro_c"]
    await engine.resume()
    await asyncio.gather(*tasks)
    assert order == ["b", "c", "a"]
    assert engine.waiting() == ()


async def test_a_new_rank_reaches_a_waiting_turn(make: Make) -> None:
    engine = make(1)
    await engine.pause(PauseMode.KEEP)
    order: list[str] = []

    async def run(name: str, rank: int) -> None:
        await engine.generate(request(name, rank=rank))
        order.append(name)

    tasks = [asyncio.create_task(run(n, r)) for n, r in [("a", 3), ("b", 1), ("c", 2)]]
    await eventually(lambda: engine.stats().waiting == 3)
    engine.set_rank({RolloutId("ro_a"): 0, RolloutId("ro_unknown"): 1})
    await engine.resume()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_an_abort_ends_running_and_waiting_turns_and_frees_their_slots(make: Make) -> None:
    engine = make(1)
    running = asyncio.create_task(engine.generate(request(request_id="r", **LONG)))
    await eventually(lambda: engine.stats().active == 1)
    waiting = asyncio.create_task(engine.generate(request("w")))
    await eventually(lambda: engine.stats().waiting == 1)
    names = [RequestId("r"), RequestId("req_w"), RequestId("unknown")]
    results = await engine.abort(names)
    assert {r.request_id for r in results} == {"r", "req_w"}
    assert (await running).finish is (await waiting).finish is Finish.ABORT
    assert (engine.stats().active, engine.stats().waiting) == (0, 0)
    assert (await engine.generate(request("next"))).token_ids


async def test_a_caller_that_leaves_frees_its_slot(make: Make) -> None:
    engine = make(1)
    leaving = asyncio.create_task(engine.generate(request(**LONG)))
    await eventually(lambda: engine.stats().active == 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await eventually(lambda: engine.stats().active == 0)
    assert (await engine.generate(request("next"))).token_ids


async def leave_by_closing(chunks: AsyncIterator[TokenChunk]) -> None:
    assert isinstance(chunks, AsyncGenerator)
    async with aclosing(chunks) as stream:
        for _ in range(3):
            await anext(stream)


async def leave_by_cancelling(chunks: AsyncIterator[TokenChunk]) -> None:
    seen = asyncio.Event()

    async def read() -> None:
        for _ in range(3):
            await anext(chunks)
        seen.set()
        async for _ in chunks:
            pass

    reading = asyncio.create_task(read())
    await seen.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def leave_by_silence(chunks: AsyncIterator[TokenChunk]) -> None:
    for _ in range(3):
        await anext(chunks)


@pytest.mark.parametrize("leave", [leave_by_closing, leave_by_cancelling, leave_by_silence])
async def test_a_reader_that_goes_after_three_pieces_frees_its_slot_and_leaves_no_text(
    embedded: EmbeddedEngine, leave: Callable[[AsyncIterator[TokenChunk]], Awaitable[None]]
) -> None:
    """Silence is what a connection that is half open looks like: the request's deadline ends it."""
    asked = request("a", rollout_id=LONG["rollout_id"], temperature=0.0)
    first = await embedded.generate(asked)
    going = request("b", deadline_s=1.0 if leave is leave_by_silence else None, **LONG)
    await leave(embedded.stream(going))
    await eventually(lambda: embedded.stats().active == embedded.stats().kv_pages_held == 0)
    again = await embedded.generate(asked)
    assert (again.token_ids, again.finish) == (first.token_ids, first.finish)


async def test_pages_of_running_turns_are_held_and_those_kept_for_later_are_not(make: Make) -> None:
    engine = make(1)
    running = asyncio.create_task(engine.generate(request(request_id="r", **LONG)))
    await eventually(lambda: engine.stats().active)
    if engine.stats().kv_pages:
        await eventually(lambda: engine.stats().kv_pages_held)
    await engine.abort([RequestId("r")])
    await running
    assert (await engine.generate(request("next"))).token_ids
    assert engine.stats().kv_pages_held == 0


async def test_a_turn_past_its_deadline_ends_as_aborted(make: Make) -> None:
    engine = make(1)
    result = await engine.generate(request(deadline_s=0.05, **LONG))
    assert (result.finish, result.error) == (Finish.ABORT, "deadline")
    assert engine.stats().active == 0


async def test_a_pause_that_aborts_ends_every_turn(make: Make) -> None:
    engine = make(1)
    running = asyncio.create_task(engine.generate(request(**LONG)))
    await eventually(lambda: engine.stats().active == 1)
    await engine.pause(PauseMode.ABORT)
    assert (await running).finish is Finish.ABORT
    assert engine.stats().paused


async def test_a_pause_that_waits_lets_running_turns_end_and_starts_none(make: Make) -> None:
    engine = make(1)
    first = asyncio.create_task(engine.generate(request("a")))
    await eventually(lambda: engine.stats().finished or engine.stats().active)
    await engine.pause(PauseMode.WAIT)
    assert engine.stats().active == 0
    second = asyncio.create_task(engine.generate(request("b")))
    await eventually(lambda: engine.stats().waiting == 1)
    assert (await first).token_ids
    await engine.resume()
    assert (await second).token_ids


async def draining(engine: Engine) -> tuple[asyncio.Task[GenResult], asyncio.Task[None]]:
    """A turn that runs, and a pause that waits for it."""
    running = asyncio.create_task(engine.generate(request(request_id="r", **LONG)))
    await eventually(lambda: engine.stats().active == 1)
    pausing = asyncio.create_task(engine.pause(PauseMode.WAIT))
    await eventually(lambda: engine.stats().paused)
    return running, pausing


async def ended(engine: Engine, running: asyncio.Task[GenResult]) -> None:
    assert not engine.stats().paused
    assert (await asyncio.wait_for(engine.generate(request("next")), 20)).token_ids
    assert not running.done(), "a turn was lost with the pause"
    await engine.abort([RequestId("r")])
    assert (await running).finish is Finish.ABORT
    await engine.pause(PauseMode.WAIT)
    assert engine.stats().paused


async def test_a_resume_ends_a_pause_that_still_waits(make: Make) -> None:
    engine = make(2)
    running, pausing = await draining(engine)
    await engine.resume()
    await asyncio.wait_for(pausing, 20)
    await ended(engine, running)


async def test_a_pause_whose_caller_leaves_pauses_nothing(make: Make) -> None:
    engine = make(2)
    running, pausing = await draining(engine)
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    await eventually(lambda: not engine.stats().paused)
    await ended(engine, running)


async def test_of_two_pauses_one_is_enough(make: Make) -> None:
    """The one that stays is answered when the turn has ended."""
    engine = make(2)
    running, leaving = await draining(engine)
    staying = asyncio.create_task(engine.pause(PauseMode.WAIT))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await engine.abort([RequestId("r")])
    await asyncio.wait_for(staying, 20)
    assert (await running).finish is Finish.ABORT
    assert engine.stats().paused


async def test_a_pause_and_a_resume_right_behind_it_are_both_answered(make: Make) -> None:
    engine = make(1)
    for mode in PauseMode:
        await asyncio.wait_for(asyncio.gather(engine.pause(mode), engine.resume()), 20)
    assert not engine.stats().paused


async def test_a_turn_that_starts_after_an_update_carries_the_new_version(
    make: Make, tmp_path: Path
) -> None:
    engine = make(1)
    ref, probe = published(decoder(1, LONG_CONTEXT), tmp_path / "v3", version=3)
    before = await engine.generate(request("a"))
    await engine.pause(PauseMode.KEEP)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()
    after = await engine.generate(request("b", weights_sha=ref.sha))
    assert set(before.versions) == {0}
    assert set(after.versions) == {3}
    assert (engine.info().version, engine.info().weights_sha) == (3, ref.sha)


async def test_a_label_read_late_is_the_version_that_sampled(make: Make, tmp_path: Path) -> None:
    engine = make(1)
    answer = asyncio.create_task(engine.generate(request("a")))
    await eventually(lambda: engine.stats().finished == 1)
    ref, probe = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    await engine.pause(PauseMode.KEEP)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()
    assert set((await answer).versions) == {0}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("missing", Refusal.UNREADABLE),
        ("cut", Refusal.CHECKSUM),
        ("old_epoch", Refusal.OLD_EPOCH),
        ("running", Refusal.NOT_PAUSED),
    ],
)
async def test_an_update_that_cannot_be_had_leaves_the_old_weights_and_the_next_one_works(
    make: Make, tmp_path: Path, damage: str, reason: Refusal
) -> None:
    engine = make(1)
    old = engine.info()
    path = tmp_path / "v1"
    epoch = -1 if damage == "old_epoch" else 0
    ref, _ = published(decoder(1, LONG_CONTEXT), path, version=1, epoch=epoch)
    if damage == "missing":
        path.unlink()
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    if damage != "running":
        await engine.pause(PauseMode.KEEP)
    with pytest.raises(SyncFailed) as failed:
        await engine.update_weights(ref)
    assert failed.value.reason is reason
    assert engine.info() == old
    await engine.pause(PauseMode.KEEP)
    ref, probe = published(decoder(1, LONG_CONTEXT), path, version=1)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()
    assert engine.info().version == 1


async def test_a_probe_of_another_version_fails_the_sync(make: Make, tmp_path: Path) -> None:
    engine = make(1)
    old = engine.info()
    ref, _ = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    _, probe = published(decoder(2, LONG_CONTEXT), tmp_path / "v2", version=2)
    await engine.pause(PauseMode.KEEP)
    await engine.update_weights(ref)
    with pytest.raises(EngineRefused) as refused:
        await engine.resume()
    assert refused.value.reason is Refusal.UNVERIFIED
    with pytest.raises(SyncFailed) as failed:
        await engine.verify_weights(probe)
    assert failed.value.reason is Refusal.PROBE_MISMATCH
    assert engine.info() == old
    await engine.resume()
    assert set((await engine.generate(request())).versions) == {0}
    assert engine.stats().sync_failures == 1


async def test_a_closed_engine_ends_open_turns_and_refuses_new_ones(make: Make) -> None:
    engine = make(1)
    running = asyncio.create_task(engine.generate(request(**LONG)))
    await eventually(lambda: engine.stats().active == 1)
    await engine.close()
    await engine.close()
    assert (await running).finish is Finish.ABORT
    with pytest.raises(EngineRefused) as refused:
        await engine.generate(request("b"))
    assert refused.value.reason is Refusal.CLOSED


async def test_a_stream_gives_the_tokens_of_the_whole_answer_and_one_finish(make: Make) -> None:
    engine = make(1)
    whole = await engine.generate(request("a", max_tokens=12))
    chunks = [chunk async for chunk in engine.stream(request("b", max_tokens=12))]
    assert tuple(t for chunk in chunks for t in chunk.token_ids) == whole.token_ids
    assert [chunk.finish for chunk in chunks if chunk.finish is not None] == [whole.finish]
    assert chunks[-1].finish is whole.finish


async def test_every_engine_names_its_capabilities_and_its_sizes(make: Make, small: Small) -> None:
    info = make(3).info()
    assert {Capability.REPRIORITISE, Capability.PAUSE_KEEP} <= set(info.capabilities)
    assert (info.slots, info.context_tokens) == (3, LONG_CONTEXT)
    assert info.vocab_size == small.folder.config.vocab_size
