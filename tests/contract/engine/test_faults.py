"""What one caller gets wrong is answered to that caller: the engine and everybody else go on."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.engine import (
    EngineRefused,
    Finish,
    PauseMode,
    ProbeSequence,
    Refusal,
    RequestId,
    SyncFailed,
)
from tests.contract.engine.conftest import LONG_CONTEXT, Small
from tests.support.engines import decoder, published, request
from tests.support.waiting import eventually
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.engine import EmbeddedEngine
from workers.rollout.embedded.keys import Keys

SOON_S = 20.0
"""Bound of what would otherwise hang for ever."""


class Broken(Exception):
    """What nobody expects."""


def sequence(*ids: int) -> ProbeSequence:
    return ProbeSequence(ids, (-1.0,) * (len(ids) - 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"sequences": (sequence(1),)},
        {"sequences": (sequence(1, 2), sequence(1))},
        {"sequences": (sequence(*(1,) * (LONG_CONTEXT + 1)),)},
        {"sequences": (sequence(1, 20),)},
        {"sequences": (sequence(-1, 1),)},
        {"sequences": (sequence(1, 2),), "tolerance": float("nan")},
        {"sequences": (sequence(1, 2),), "tolerance": float("inf")},
    ],
)
async def test_a_malformed_probe_fails_the_sync_and_the_engine_goes_on(
    embedded: EmbeddedEngine, tmp_path: Path, changes: dict[str, Any]
) -> None:
    ref, probe = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    await embedded.pause(PauseMode.KEEP)
    await embedded.update_weights(ref)
    with pytest.raises(SyncFailed) as failed:
        await asyncio.wait_for(embedded.verify_weights(replace(probe, **changes)), SOON_S)
    assert failed.value.reason is Refusal.PROBE_MISMATCH
    assert embedded.info().version == 0
    await embedded.resume()
    assert (await embedded.generate(request())).token_ids


async def test_a_probe_that_cannot_be_computed_restores_the_old_weights(
    embedded: EmbeddedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise Broken("no memory")

    ref, probe = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    monkeypatch.setattr("workers.rollout.embedded.probe.score", no_memory)
    await embedded.pause(PauseMode.KEEP)
    await embedded.update_weights(ref)
    with pytest.raises(SyncFailed):
        await asyncio.wait_for(embedded.verify_weights(probe), SOON_S)
    await embedded.resume()
    assert (embedded.info().version, embedded.stats().sync_failures) == (0, 1)


async def test_what_a_posted_call_raises_reaches_its_caller_and_no_other(
    embedded: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Broken("abort")

    monkeypatch.setattr(Core, "abort", broken)
    calls = (
        embedded.abort([RequestId("x")]),
        embedded.generate(request("a")),
        embedded.pause(PauseMode.KEEP),
        embedded.resume(),
    )
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SOON_S)
    assert isinstance(outcomes[0], Broken)
    assert not any(isinstance(one, BaseException) for one in outcomes[1:])


async def test_a_caller_that_leaves_before_its_call_ran_breaks_nothing(
    embedded: EmbeddedEngine,
) -> None:
    running = asyncio.create_task(embedded.generate(request("r", max_tokens=4000)))
    await eventually(lambda: embedded.stats().sampled_tokens)
    leaving = [asyncio.create_task(embedded.abort([RequestId("x")])) for _ in range(20)]
    await asyncio.sleep(0)
    for one in leaving:
        one.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await asyncio.wait_for(embedded.abort([RequestId("req_r")]), SOON_S)
    assert (await running).finish is Finish.ABORT


async def test_a_request_that_cannot_even_be_checked_is_answered(embedded: EmbeddedEngine) -> None:
    odd: Any = ("1", 2)
    with pytest.raises(TypeError):
        await asyncio.wait_for(embedded.generate(request("a", odd)), SOON_S)
    stream = embedded.stream(request("b", odd))
    with pytest.raises(TypeError):
        await asyncio.wait_for(anext(stream), SOON_S)
    assert (await embedded.generate(request("c"))).token_ids


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_ends_the_engine_is_answered_to_everybody(
    embedded: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that is between queue and slot is in neither when it happens."""
    started, posted = threading.Event(), threading.Event()

    def broken(*_: object) -> None:
        started.set()
        posted.wait(SOON_S)
        raise Broken("no slot")

    await embedded.pause(PauseMode.KEEP)
    waiting = [asyncio.create_task(embedded.generate(request(name))) for name in "ab"]
    stream = embedded.stream(request("c"))
    reading = asyncio.ensure_future(anext(stream))
    await eventually(lambda: embedded.stats().waiting == 3)
    monkeypatch.setattr(Keys, "start", broken)
    await embedded.resume()
    await eventually(started.is_set)
    calls = (embedded.abort([]), embedded.pause(PauseMode.WAIT), embedded.generate(request("d")))
    ends = asyncio.gather(*waiting, reading, *calls, return_exceptions=True)
    await asyncio.sleep(0)
    posted.set()
    *turns, aborted, paused, late = await asyncio.wait_for(ends, SOON_S)
    for one in turns:
        is_refused = isinstance(one, EngineRefused) and one.reason is Refusal.CLOSED
        assert is_refused or getattr(one, "finish", None) is Finish.ERROR, one
    for call in (aborted, paused, late):
        assert isinstance(call, EngineRefused)
        assert call.reason is Refusal.CLOSED
    with pytest.raises(EngineRefused) as refused:
        await embedded.generate(request("late"))
    assert refused.value.reason is Refusal.CLOSED


async def test_an_update_refused_between_two_steps_counts_as_failed(
    embedded: EmbeddedEngine, small: Small, tmp_path: Path
) -> None:
    first, _ = published(decoder(1, LONG_CONTEXT), tmp_path / "v1", version=1)
    await embedded.pause(PauseMode.KEEP)
    reading = asyncio.create_task(embedded.update_weights(first))
    await asyncio.sleep(0)
    await embedded.resume()
    with pytest.raises(SyncFailed) as failed:
        await reading
    assert failed.value.reason is Refusal.NOT_PAUSED
    assert embedded.stats().sync_failures == 1
