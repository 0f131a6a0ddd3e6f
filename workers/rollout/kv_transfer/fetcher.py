"""The target's side: bring the pages of a rollout that moves here into this process's own hands.

    ask for the ticket -> same machine: open the memory     -> tell the source that it may let go
                       -> elsewhere: read ranges, check each

Whatever fails is a `KvRefused` with its reason, counted; the source may die at any moment after.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import httpx
import numpy as np
from msgspec import MsgspecError

from domain.ids import RolloutId
from domain.kv_ticket import ITEM_BYTES, KvFailure, KvRefused, KvTicket
from domain.wire import KvSource
from infra.codec import from_json
from infra.kv_access import matches, sign_answer, sign_request
from workers.rollout.kv_transfer.pages import Content, verify
from workers.rollout.kv_transfer.segments import Segment, machine
from workers.rollout.kv_transfer.server import (
    EXPIRES_HEADER,
    PROOF_HEADER,
    RANGE_BYTES_MAX,
    Refused,
)
from workers.rollout.kv_transfer.transfer import EXPORT_BYTES_MAX, KvTransfer

FETCH_S: Final = 10.0
"""A fetch that takes longer loses to a prefill of any context that an engine holds."""

RELEASE_S: Final = 1.0
"""The pages are here already: whether the source hears of it is not worth more of a gap."""

TICKET_BYTES_MAX: Final = 8 * 1024 * 1024
"""A ticket with the checksums of a gigabyte of small pages has less."""


HELD_BYTES_MAX: Final = 1 << 30
"""Memory of the host that arrivals may take while their tools run; more are computed anew."""


@dataclass(slots=True)
class Fetched:
    """Pages in this process's hands: `ticket` names its own memory. Close it after the prefill."""

    ticket: KvTicket
    segment: Segment
    let_go: Callable[[int], None]
    """Hears of the bytes once they are given back."""

    def close(self) -> None:
        """Let go; may be called twice."""
        if self.segment.is_open:
            self.segment.close()
            self.let_go(self.segment.size)


class KvFetcher:
    """Fetches for all rollouts of a host."""

    def __init__(
        self,
        transfer: KvTransfer,
        *,
        deadline_s: float = FETCH_S,
        held_bytes_max: int = HELD_BYTES_MAX,
        here: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`here` names this machine; another name makes everything travel over HTTP."""
        self._transfer = transfer
        self._deadline_s = deadline_s
        self._held_bytes_max = held_bytes_max
        self.held_bytes = 0
        """Bytes that arrivals take, those on their way among them."""
        self._here = machine() if here is None else here
        self._now = now
        # The address is the leader's word: no proxy of the surroundings may stand in between.
        self._client = httpx.AsyncClient(trust_env=False, timeout=deadline_s)

    async def fetch(self, rollout_id: RolloutId, source: KvSource) -> Fetched:
        """The pages of the placement that `source` names. Raises KvRefused."""
        try:
            async with asyncio.timeout(self._deadline_s):
                fetched = await self._fetch(rollout_id, source)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise self._counted(KvFailure.LATE, f"not within {self._deadline_s:g} s") from error
        except httpx.HTTPError as error:
            raise self._counted(KvFailure.UNREACHABLE, str(error)) from error
        except KvRefused as refused:
            self._transfer.count_failure("fetch", refused)
            raise
        self._transfer.counts["fetches"] += 1
        return fetched

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    def _counted(self, reason: KvFailure, detail: str) -> KvRefused:
        refused = KvRefused(reason, detail)
        self._transfer.count_failure("fetch", refused)
        return refused

    async def _fetch(self, rollout_id: RolloutId, source: KvSource) -> Fetched:
        path = f"/kv/{quote(rollout_id, safe='')}/{source.hop}"
        ticket = await self._ticket(source, path)
        if ticket.rollout_id != rollout_id:
            raise KvRefused(KvFailure.OTHER_TOKENS, f"of {ticket.rollout_id}")
        segment = await self._held(source, path, ticket)
        # Expiry was the source's promise to keep a copy; this one is held here.
        mine = replace(
            ticket,
            path=segment.path,
            machine=machine(),
            expires_at=math.inf,
        )
        fetched = Fetched(mine, segment, self._let_go)
        try:
            await self._release(source, path)
        except BaseException:
            fetched.close()
            raise
        return fetched

    async def _held(self, source: KvSource, path: str, ticket: KvTicket) -> Segment:
        if self.held_bytes + ticket.size > self._held_bytes_max:
            raise KvRefused(KvFailure.NO_ROOM, f"{self.held_bytes} bytes of arrivals are held")
        self.held_bytes += ticket.size
        try:
            return await self._segment(source, path, ticket)
        except BaseException:
            self._let_go(ticket.size)
            raise

    def _let_go(self, size: int) -> None:
        self.held_bytes -= size

    async def _ticket(self, source: KvSource, path: str) -> KvTicket:
        answer = await self._ask(source, "GET", path)
        body = answer.content
        if len(body) > TICKET_BYTES_MAX:
            raise KvRefused(KvFailure.MALFORMED, f"a ticket of {len(body)} bytes")
        if not matches(answer.headers.get(PROOF_HEADER, ""), sign_answer(source.key, body)):
            raise KvRefused(KvFailure.FORBIDDEN, "the host at the address is another one")
        try:
            ticket = from_json(body, KvTicket)
        except MsgspecError as error:
            raise KvRefused(KvFailure.MALFORMED, str(error)) from error
        if ticket.layout.dtype not in ITEM_BYTES or not 0 < ticket.size <= EXPORT_BYTES_MAX:
            raise KvRefused(KvFailure.MALFORMED, f"{ticket.layout}")
        if self._now() >= ticket.expires_at:
            raise KvRefused(KvFailure.EXPIRED, "the ticket is too old")
        return ticket

    async def _segment(self, source: KvSource, path: str, ticket: KvTicket) -> Segment:
        if ticket.machine == self._here:
            return Segment.opened(ticket.path, ticket.size)
        page_bytes = ticket.layout.page_bytes
        step = max(RANGE_BYTES_MAX // page_bytes, 1)
        parts = []
        for first in range(0, len(ticket.checksums), step):
            count = min(step, len(ticket.checksums) - first)
            wanted = (first * page_bytes, (first + count) * page_bytes - 1)
            part = await self._range(source, f"{path}/pages", wanted)
            content = part.reshape(-1, page_bytes)
            verify(ticket, content, first)
            parts.append(content)
        return Segment.filled(f"kv-{ticket.rollout_id}", _in_order(parts))

    async def _range(self, source: KvSource, path: str, wanted: tuple[int, int]) -> Content:
        first, last = wanted
        answer = await self._ask(source, "GET", path, f"bytes={first}-{last}")
        body = answer.content
        if answer.status_code != HTTPStatus.PARTIAL_CONTENT or len(body) != last - first + 1:
            raise KvRefused(KvFailure.SHORT, f"{len(body)} of {last - first + 1} bytes")
        return np.frombuffer(body, dtype=np.uint8)

    async def _release(self, source: KvSource, path: str) -> None:
        """Best effort: a source that does not hear of it lets go at the end of its time."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._ask(source, "DELETE", path)
        except (TimeoutError, httpx.HTTPError, KvRefused):
            self._transfer.counts["releases_lost"] += 1

    async def _ask(
        self, source: KvSource, method: str, path: str, wanted: str = ""
    ) -> httpx.Response:
        headers = {
            EXPIRES_HEADER: str(source.expires),
            PROOF_HEADER: sign_request(source.key, method, path),
        }
        if wanted:
            headers["range"] = wanted
        answer = await self._client.request(
            method, f"http://{source.address}{path}", headers=headers
        )
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise _refusal(answer)
        return answer


def _in_order(parts: list[Content]) -> Iterator[Content]:
    """Each part once, given back as soon as it is written."""
    parts.reverse()
    while parts:
        yield parts.pop()


def _refusal(answer: httpx.Response) -> KvRefused:
    try:
        said = from_json(answer.content, Refused)
    except MsgspecError:
        return KvRefused(KvFailure.UNREACHABLE, f"status {answer.status_code}")
    return KvRefused(said.reason, said.detail)
