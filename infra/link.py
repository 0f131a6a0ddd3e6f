"""A host's connection to the leader: find it, prove both sides, snapshot, then frames.

A broken connection means dial again and snapshot again. Frames sent while no connection stands are
dropped: everything that matters is in the snapshot, in Postgres or both.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from domain.ids import HostId, RolloutId
from domain.wire import Challenge, Hello, HostBeat, HostSnapshot, LeaderBeat, Proof, Refused
from infra.frames import Channel, ConnectionEnded, connect
from infra.logging import get_logger
from infra.proofs import fresh_nonce, key_sha, proof, same

DIAL_TIMEOUT_S: Final = 3.0
"""A leader that does not answer within it is stopped or gone; look at `leadership` again."""

DIAL_PAUSE_S: Final = 0.3
"""Between two dials, so that a missing leader costs few queries."""

LEADER_BEAT_S: Final = 0.5
"""How often leader and host say that they live."""

LEADER_SILENCE_S: Final = 3.0
"""Silence after which a host hangs up and looks at `leadership`."""


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """The row of `leadership` as a host sees it."""

    term: int
    address: str
    key: bytes


def changes(told: Mapping[RolloutId, str], now: Mapping[RolloutId, str]) -> dict[RolloutId, str]:
    """What differs from what was told; empty text for what is gone."""
    gone = {rollout: "" for rollout in told if rollout not in now}
    return gone | {rollout: phase for rollout, phase in now.items() if told.get(rollout) != phase}


class LeaderLink:
    """Keeps one proven connection to whoever leads.

    `find_leader` reads `leadership`; `snapshot` gives all that the host holds; `on_frame` handles one
    frame and must not wait; `figures` are sent with each heartbeat, of `phases` what changed.
    """

    def __init__(
        self,
        host_id: HostId,
        epoch: int,
        key: bytes,
        *,
        find_leader: Callable[[], Awaitable[LeaderAddress | None]],
        snapshot: Callable[[], HostSnapshot],
        on_frame: Callable[[object], None],
        figures: Callable[[], dict[str, float]] = dict,
        phases: Callable[[], dict[RolloutId, str]] = dict,
    ) -> None:
        self._host_id = host_id
        self._epoch = epoch
        self._key = key
        self._find_leader = find_leader
        self._snapshot = snapshot
        self._on_frame = on_frame
        self._figures = figures
        self._phases = phases
        self._channel: Channel | None = None
        self.highest_term = 0
        self.dials = 0
        self._log = get_logger().bind(host_id=host_id, epoch=epoch)

    def send(self, record: object) -> None:
        """Send to the leader if one is connected; a lost frame is found again by query or snapshot."""
        if self._channel is not None:
            with contextlib.suppress(ConnectionEnded):
                self._channel.send(record)

    async def run(self) -> None:
        """Dial for ever; ends only by cancellation."""
        while True:
            try:
                await self._session()
            except ConnectionEnded as ended:
                self._log.info("leader.disconnected", cause=str(ended))
            self._channel = None
            await asyncio.sleep(DIAL_PAUSE_S)

    async def _session(self) -> None:
        leader = await self._find_leader()
        if leader is None or leader.term < self.highest_term:
            return
        self.dials += 1
        channel = await connect(leader.address, DIAL_TIMEOUT_S)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._prove(channel, leader)
            self.highest_term = leader.term
            channel.send(self._snapshot())
            self._channel = channel
            await self._serve(channel, leader.term)
        except TimeoutError as error:
            raise ConnectionEnded("the leader does not answer") from error
        finally:
            self._channel = None
            await channel.close()

    async def _prove(self, channel: Channel, leader: LeaderAddress) -> None:
        nonce = fresh_nonce()
        channel.send(Hello(self._host_id, self._epoch, self.highest_term, nonce))
        challenge = await channel.receive()
        if isinstance(challenge, Refused):
            raise ConnectionEnded(f"refused: {challenge.code} {challenge.detail}")
        if not isinstance(challenge, Challenge) or challenge.term != leader.term:
            raise ConnectionEnded("the address answers for another term")
        parts = (nonce, challenge.nonce, self._host_id, self._epoch, challenge.term)
        if not same(challenge.proof, proof(leader.key, b"leader", *parts)):
            raise ConnectionEnded("the leader could not prove itself")
        channel.send(Proof(proof(key_sha(self._key), b"host", *parts)))

    async def _serve(self, channel: Channel, term: int) -> None:
        beats = asyncio.create_task(self._beat(channel))
        try:
            while True:
                async with asyncio.timeout(LEADER_SILENCE_S):
                    frame = await channel.receive()
                match frame:
                    case Refused():
                        raise ConnectionEnded(f"refused: {frame.code} {frame.detail}")
                    case LeaderBeat(term=beat) if beat == term:
                        continue
                    case LeaderBeat():
                        raise ConnectionEnded("a beat of another term")
                    case _:
                        self._on_frame(frame)
        finally:
            beats.cancel()

    async def _beat(self, channel: Channel) -> None:
        told: dict[RolloutId, str] = {}
        while not channel.closed.is_set():
            phases = self._phases()
            with contextlib.suppress(ConnectionEnded):
                channel.send(HostBeat(self._figures(), changes(told, phases)))
            told = phases
            await asyncio.sleep(LEADER_BEAT_S)
