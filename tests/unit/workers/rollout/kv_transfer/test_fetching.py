"""From host to host over HTTP: proofs, ranges, and every way in which a fetch may fail."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from domain.wire import KvSource
from infra.kv_access import access_key, sign_request
from tests.support import eventually
from tests.unit.workers.rollout.kv_transfer.arena import (
    LAYOUT,
    ROLLOUT,
    NumpyArena,
    Wall,
    exported,
    run_of,
)
from workers.rollout.kv_transfer import fetcher
from workers.rollout.kv_transfer.fetcher import KvFetcher
from workers.rollout.kv_transfer.pages import Content
from workers.rollout.kv_transfer.segments import Segment
from workers.rollout.kv_transfer.server import KvServer
from workers.rollout.kv_transfer.transfer import KvTransfer

TOKENS, HOP, KEY = 150, 4, "data-key"


@dataclass
class Pair:
    """A source with one departed rollout, and a target elsewhere."""

    wall: Wall
    source: KvTransfer
    target: KvTransfer
    server: KvServer
    content: Content
    asked: list[tuple[RolloutId, int]]
    ticket: KvTicket

    def kv(self, **changed: object) -> KvSource:
        expires = int(self.wall()) + 60
        key = access_key(KEY, ROLLOUT, HOP, expires)
        source = KvSource(self.server.address, HOP, expires, key)
        return replace(source, **changed)  # type: ignore[arg-type]  # a test names its own

    async def fetch(
        self, source: KvSource, here: str = "elsewhere", deadline_s: float = 5.0
    ) -> Content:
        one = KvFetcher(self.target, here=here, deadline_s=deadline_s, now=self.wall)
        try:
            fetched = await one.fetch(ROLLOUT, source)
        finally:
            await one.close()
        try:
            return self.target.take(fetched.ticket, run_of(TOKENS))
        finally:
            fetched.close()

    async def refused(self, source: KvSource, **changed: float) -> KvFailure:
        with pytest.raises(KvRefused) as caught:
            await self.fetch(source, **changed)  # type: ignore[arg-type]  # only the deadline
        assert self.target.counts == {f"fetch_failed_{caught.value.reason.value}": 1}
        return caught.value.reason


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    wall = Wall()
    source, asked = KvTransfer(wall), list[tuple[RolloutId, int]]()
    content = exported(source, NumpyArena(40), run_of(TOKENS))
    ticket = source.find(ROLLOUT)
    assert ticket is not None

    async def depart(rollout: RolloutId, hop: int) -> KvTicket:
        asked.append((rollout, hop))
        found = source.find(rollout)
        if found is None:
            raise KvRefused(KvFailure.GONE, rollout)
        return one.ticket

    server = KvServer(source, KEY, depart, wall, metrics=lambda: b"venus_engine_active 1.0\n")
    one = Pair(wall, source, KvTransfer(wall), server, content, asked, ticket)
    running = asyncio.create_task(server.run())
    yield one
    server.stop()
    await running
    source.close()


async def test_pages_travel_in_checked_ranges_and_the_source_gets_its_room_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "RANGE_BYTES_MAX", 3 * LAYOUT.page_bytes)
    assert (await pair.fetch(pair.kv()) == pair.content).all()
    assert pair.asked == [(ROLLOUT, HOP)] * 5, "a ticket and four ranges for ten pages"
    assert pair.source.held_bytes == 0
    assert pair.target.counts["fetches"] == 1


async def test_on_one_machine_the_memory_is_opened_and_no_page_travels(pair: Pair) -> None:
    content = await pair.fetch(pair.kv(), here=pair.ticket.machine)
    assert (content == pair.content).all()
    assert pair.asked == [(ROLLOUT, HOP)]
    assert pair.source.held_bytes == 0


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        (KvFailure.FORBIDDEN, {"key": b"k" * 32}),
        (KvFailure.FORBIDDEN, {"hop": HOP + 1}),
        (KvFailure.FORBIDDEN, {"expires": 2_000_000}),
        (KvFailure.UNREACHABLE, {"address": "127.0.0.1:1"}),
    ],
)
async def test_who_cannot_prove_the_placement_gets_nothing(
    pair: Pair, reason: KvFailure, changed: dict[str, object]
) -> None:
    source = replace(pair.kv(), **changed)  # type: ignore[arg-type]  # a test names its own
    assert await pair.refused(source) is reason
    assert pair.asked == []
    assert pair.source.held_bytes > 0


async def test_a_key_opens_nothing_after_its_time(pair: Pair) -> None:
    source = pair.kv()
    pair.wall.seconds = float(source.expires)
    assert await pair.refused(source) is KvFailure.EXPIRED


async def test_arrivals_that_wait_for_their_tools_have_a_bound(pair: Pair) -> None:
    one = KvFetcher(pair.target, held_bytes_max=pair.ticket.size, now=pair.wall)
    first = await one.fetch(ROLLOUT, pair.kv())
    assert one.held_bytes == pair.ticket.size
    exported(pair.source, NumpyArena(40), run_of(TOKENS))
    found = pair.source.find(ROLLOUT)
    assert found is not None
    pair.ticket = found
    with pytest.raises(KvRefused) as caught:
        await one.fetch(ROLLOUT, pair.kv())
    assert caught.value.reason is KvFailure.NO_ROOM
    first.close()
    first.close()
    assert one.held_bytes == 0
    (await one.fetch(ROLLOUT, pair.kv())).close()
    await one.close()
    assert one.held_bytes == 0


async def test_a_departure_that_is_over_is_gone(pair: Pair) -> None:
    pair.source.release(ROLLOUT)
    assert await pair.refused(pair.kv()) is KvFailure.GONE


async def test_another_host_at_the_address_is_found_out(pair: Pair) -> None:
    key = access_key("key of the former process", ROLLOUT, HOP, pair.kv().expires)
    pair.server._data_key = "key of the former process"
    source = pair.kv(key=key)
    pair.server._admit = lambda *asked: b"it lets everybody in"  # type: ignore[method-assign]
    assert await pair.refused(source) is KvFailure.FORBIDDEN


async def test_a_page_that_changed_on_its_way_is_found(pair: Pair) -> None:
    torn = pair.content.copy()
    torn[7, 5] ^= 1
    export = pair.source._exports[ROLLOUT]
    export.segment.close()
    pair.source._exports[ROLLOUT] = replace(export, segment=Segment.filled("kv-torn", [torn]))
    assert await pair.refused(pair.kv()) is KvFailure.CHECKSUM


async def test_pages_that_are_missing_at_the_source_are_found(pair: Pair) -> None:
    export = pair.source._exports[ROLLOUT]
    export.segment.close()
    short = Segment.filled("kv-short", [pair.content[:-1]])
    pair.source._exports[ROLLOUT] = replace(export, segment=short)
    assert await pair.refused(pair.kv()) is KvFailure.SHORT


async def test_a_ticket_that_has_expired_is_not_used(pair: Pair) -> None:
    pair.ticket = replace(pair.ticket, expires_at=pair.wall() - 1.0)
    assert await pair.refused(pair.kv()) is KvFailure.EXPIRED


async def test_a_ticket_that_claims_more_than_any_export_is_not_believed(pair: Pair) -> None:
    large = replace(LAYOUT, head_dim=1 << 40)
    pair.ticket = replace(pair.ticket, layout=large)
    assert await pair.refused(pair.kv()) is KvFailure.MALFORMED


async def test_a_source_that_hangs_costs_no_more_than_the_deadline(pair: Pair) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    source = pair.kv(address=f"{host}:{port}")
    assert await pair.refused(source, deadline_s=0.2) is KvFailure.LATE
    listener.close()
    await listener.wait_closed()


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("", 400),
        ("bytes=0-", 400),
        ("bytes=-5", 400),
        ("bytes=9-3", 400),
        ("bytes=0-99999999", 400),
        ("bytes=0-3,5-6", 400),
        ("bytes=40960-40961", 416),
        ("bytes=40958-40959", 206),
    ],
)
async def test_only_one_whole_range_inside_the_pages_is_served(
    pair: Pair, wanted: str, status: int
) -> None:
    path, source = f"/kv/{ROLLOUT}/{HOP}/pages", pair.kv()
    headers = {
        "x-kv-expires": str(source.expires),
        "x-kv-proof": sign_request(source.key, "GET", path),
        "range": wanted,
    }
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://{source.address}{path}", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/kv/{ROLLOUT}/{'4' * 5_000}", {}),
        (f"/kv/{ROLLOUT}/%C2%B2", {}),
        (f"/kv/{ROLLOUT}/-4/pages", {}),
        (f"/kv/{ROLLOUT}/{HOP}", {b"x-kv-expires": "²".encode()}),
        (f"/kv/{ROLLOUT}/{HOP}", {b"x-kv-expires": b"\xb2"}),
        (f"/kv/{ROLLOUT}/{HOP}", {b"x-kv-expires": b"9" * 5_000}),
        (f"/kv/{ROLLOUT}/{HOP}", {b"x-kv-expires": b""}),
        (f"/kv/{ROLLOUT}/{HOP}/pages", {b"range": b"bytes=0-\xb2"}),
        (f"/kv/{ROLLOUT}/{HOP}/pages", {b"range": b"bytes=0-" + b"9" * 5_000}),
    ],
)
async def test_what_is_no_number_is_malformed(
    pair: Pair, path: str, headers: dict[bytes, bytes]
) -> None:
    source = pair.kv()
    proven = {
        b"x-kv-expires": str(source.expires).encode(),
        b"x-kv-proof": sign_request(source.key, "GET", path).encode(),
    }
    async with httpx.AsyncClient(trust_env=False) as client:
        address = f"http://{source.address}{path}"
        answer = await client.get(address, headers=[*(proven | headers).items()])
    assert (answer.status_code, answer.json()["reason"]) == (400, "malformed")


async def test_a_header_of_any_bytes_is_answered(pair: Pair) -> None:
    headers = [(b"x-kv-expires", b"1"), (b"x-kv-proof", b"\xff\xfe"), (b"x-other", b"\xb2")]
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://{pair.server.address}/kv/{ROLLOUT}/1", headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")


async def test_a_lost_release_leaves_the_copy_to_its_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(rollout: RolloutId) -> bool:
        raise KvRefused(KvFailure.GONE, rollout)

    with monkeypatch.context() as patched:
        patched.setattr(pair.source, "release", lost)
        assert (await pair.fetch(pair.kv()) == pair.content).all()
    assert pair.target.counts["releases_lost"] == 1
    assert pair.source.held_bytes > 0
    pair.wall.seconds += 60.0
    await eventually(lambda: pair.source.figures()["kv_export_bytes"] == 0.0)


async def test_metrics_need_no_proof_and_open_nothing_else(pair: Pair) -> None:
    async with httpx.AsyncClient(base_url=f"http://{pair.server.address}") as client:
        told = await client.get("/metrics")
        assert told.text == "venus_engine_active 1.0\n"
        assert told.headers["content-type"].startswith("text/plain")
        assert (await client.post("/metrics")).status_code == 400
        assert (await client.get(f"/kv/{ROLLOUT}/{HOP}")).status_code == 403
    assert pair.asked == []
