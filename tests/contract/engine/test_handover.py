"""Pages from one engine to another: the next turn there is what it would have been, with less work."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from domain.engine import Capability, Finish, GenRequest, GenResult, PauseMode, RequestId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra.clock import SystemClock
from tests.contract.engine.conftest import LONG_CONTEXT, Make, Small
from tests.support.engines import request
from tests.support.waiting import eventually
from workers.models.folder import weights_sha
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.kv_transfer.pages import Content
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.ports import Engine
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import Script, ScriptedAnswer

OPENING = tuple(1 + n % 9 for n in range(40))
OBSERVATION = (11, 3, 4, 12)


@dataclass
class Handing:
    """An engine that hands pages over, and what it counts of them."""

    engine: Engine
    transfer: KvTransfer


Start = Callable[[], Handing]


def scripted(small: Small, transfer: KvTransfer) -> Engine:
    script = Script(default=(ScriptedAnswer(token_ids=(13, 1, 16)),))
    sizes = ScriptedSizes(small.folder.config.vocab_size, LONG_CONTEXT)
    sha = weights_sha(small.model.state_dict())
    return ScriptedEngine("small", sizes, script, SystemClock(), weights_sha=sha, transfer=transfer)


def embedded(small: Small, transfer: KvTransfer) -> Engine:
    return EmbeddedEngine("small", small.folder, EngineLimits(slots=2), transfer=transfer)


ENGINES = {"embedded": embedded, "scripted": scripted}


@pytest.fixture(params=sorted(ENGINES))
async def start(request: pytest.FixtureRequest, small: Small) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        def build() -> Handing:
            transfer = KvTransfer(time.time)
            engine = ENGINES[request.param](small, transfer)
            stack.push_async_callback(engine.close)
            stack.callback(transfer.close)
            return Handing(engine, transfer)

        yield build


async def first_turn(engine: Engine) -> GenResult:
    return await engine.generate(request(ids=OPENING, temperature=0.0, request_id="req_1"))


def second_turn(first: GenResult, ticket: KvTicket | None = None) -> GenRequest:
    ids = (*OPENING, *first.token_ids, *OBSERVATION)
    return replace(
        request(ids=ids, temperature=0.0, request_id="req_2"),
        kv_source=ticket,
    )


async def test_the_target_computes_only_what_came_after_the_ticket(start: Start) -> None:
    a, b, cold = start(), start(), start()
    assert Capability.KV_EXPORT in a.engine.info().capabilities
    first = await first_turn(a.engine)
    ticket = await a.engine.export_kv(first.rollout_id)
    whole = (len(OPENING) + len(first.token_ids) - 1) // 16 * 16
    assert whole <= ticket.tokens < len(OPENING) + len(first.token_ids)
    warm = await b.engine.generate(second_turn(first, ticket))
    computed = await cold.engine.generate(second_turn(first))
    assert warm.cached_tokens == ticket.tokens
    assert computed.cached_tokens == 0
    assert warm.token_ids == computed.token_ids
    assert warm.logprobs == pytest.approx(computed.logprobs, abs=1e-5)
    assert b.transfer.counts["imported_tokens"] == ticket.tokens


async def test_a_rollout_that_came_can_go_on_to_a_third_engine(start: Start) -> None:
    a, b, c = start(), start(), start()
    first = await first_turn(a.engine)
    second = await b.engine.generate(second_turn(first, await a.engine.export_kv(first.rollout_id)))
    ticket = await b.engine.export_kv(first.rollout_id)
    ids = (*second_turn(first).token_ids, *second.token_ids, *OBSERVATION)
    asked = replace(request(ids=ids, temperature=0.0), kv_source=ticket)
    third = await c.engine.generate(asked)
    computed = await start().engine.generate(replace(asked, kv_source=None))
    assert third.cached_tokens == ticket.tokens > len(OPENING)
    assert third.token_ids == computed.token_ids


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (KvFailure.CHECKSUM, lambda t: replace(t, checksums=("0", *t.checksums[1:]))),
        (KvFailure.EXPIRED, lambda t: replace(t, expires_at=1.0)),
        (KvFailure.OTHER_TENANT, lambda t: replace(t, tenant="org_1")),
        (KvFailure.OTHER_TENANT, lambda t: replace(t, tenant="")),
        (KvFailure.OTHER_WEIGHTS, lambda t: replace(t, weights_sha="others")),
        (KvFailure.OTHER_WEIGHTS, lambda t: replace(t, adapter_sha="others")),
        (KvFailure.OTHER_TOKENS, lambda t: replace(t, token_sha="others")),
        (KvFailure.OTHER_LAYOUT, lambda t: replace(t, layout=replace(t.layout, head_dim=2))),
        (KvFailure.GONE, lambda t: replace(t, path="/proc/self/fd/99999")),
    ],
)
async def test_a_ticket_that_does_not_fit_costs_a_prefill_and_nothing_else(
    start: Start, reason: KvFailure, change: Callable[[KvTicket], KvTicket]
) -> None:
    a, b = start(), start()
    first = await first_turn(a.engine)
    ticket = change(await a.engine.export_kv(first.rollout_id))
    cold = await b.engine.generate(second_turn(first, ticket))
    computed = await start().engine.generate(second_turn(first))
    assert cold.cached_tokens == 0
    assert (cold.token_ids, cold.finish) == (computed.token_ids, computed.finish)
    assert b.transfer.counts == {f"import_failed_{reason.value}": 1}


async def test_a_ticket_outlives_the_rollout_at_its_source_and_the_source_itself(
    start: Start,
) -> None:
    a, b = start(), start()
    first = await first_turn(a.engine)
    ticket = await a.engine.export_kv(first.rollout_id)
    a.engine.release(first.rollout_id)
    await a.engine.close()
    assert (await b.engine.generate(second_turn(first, ticket))).cached_tokens == ticket.tokens


async def test_what_was_never_there_or_is_released_is_no_export(start: Start) -> None:
    a = start()
    first = await first_turn(a.engine)
    a.engine.release(first.rollout_id)
    for name in (first.rollout_id, request("stranger").rollout_id):
        with pytest.raises(KvRefused) as caught:
            await a.engine.export_kv(name)
        assert caught.value.reason is KvFailure.NO_PAGES


async def test_an_engine_that_hands_nothing_over_says_so_and_takes_no_ticket_amiss(
    start: Start, make: Make
) -> None:
    a, plain = start(), make(2)
    first = await first_turn(a.engine)
    ticket = await a.engine.export_kv(first.rollout_id)
    assert Capability.KV_EXPORT not in plain.info().capabilities
    asked = replace(second_turn(first, ticket), request_id=RequestId("req_3"))
    assert (await plain.generate(asked)).cached_tokens == 0
    with pytest.raises(KvRefused) as caught:
        await plain.export_kv(first.rollout_id)
    assert caught.value.reason is KvFailure.UNSUPPORTED


async def abort(engine: Engine) -> None:
    (result,) = await engine.abort([RequestId("req_2")])
    assert result.finish is Finish.ABORT


async def pause(engine: Engine) -> None:
    await engine.pause(PauseMode.ABORT)
    await engine.resume()


@pytest.mark.parametrize("end", [abort, pause])
async def test_a_turn_whose_pages_are_looked_at_can_be_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch, end: Callable[[Engine], Awaitable[None]]
) -> None:
    """What is asked of the engine right behind `generate` finds the turn there."""
    a, b = start(), start()
    first = await first_turn(a.engine)
    ticket = await a.engine.export_kv(first.rollout_id)
    going_on = threading.Event()
    look = b.transfer.look

    def slow(*args: Any) -> Content:
        if isinstance(b.engine, EmbeddedEngine):  # the other looks on the caller's loop
            going_on.wait(20)
        return look(*args)

    monkeypatch.setattr(b.transfer, "look", slow)
    await b.engine.pause(PauseMode.KEEP)
    if isinstance(b.engine, EmbeddedEngine):
        await b.engine.resume()
    turn = asyncio.create_task(b.engine.generate(second_turn(first, ticket)))
    await asyncio.sleep(0)
    try:
        await end(b.engine)
    finally:
        going_on.set()
    ended = await asyncio.wait_for(turn, 20)
    assert (ended.finish, ended.token_ids) == (Finish.ABORT, ())
    await b.engine.resume()
    again = replace(second_turn(first, ticket), request_id=RequestId("req_3"))
    assert (await b.engine.generate(again)).cached_tokens == ticket.tokens


async def test_a_request_that_is_refused_and_left_ends_no_other(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer = KvTransfer(time.time)
    engine = EmbeddedEngine("small", small.folder, EngineLimits(slots=2), transfer=transfer)
    first = await first_turn(engine)
    ticket = await engine.export_kv(first.rollout_id)
    running = asyncio.create_task(engine.generate(request(request_id="req_2", max_tokens=4000)))
    await eventually(lambda: engine.stats().active == 1)
    going_on = threading.Event()

    def slow(*_: Any) -> Content:
        going_on.wait(20)
        raise KvRefused(KvFailure.GONE, "the test says so")

    monkeypatch.setattr(transfer, "look", slow)
    twice = asyncio.create_task(engine.generate(second_turn(first, ticket)))
    await eventually(lambda: engine.stats().refused)
    twice.cancel()
    await asyncio.gather(twice, return_exceptions=True)
    going_on.set()
    assert (await engine.generate(request("next"))).token_ids
    assert not running.done()
    await engine.close()
    await running
    transfer.close()
