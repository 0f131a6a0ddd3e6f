"""Connections of hosts to this leader: proof, snapshot, then frames both ways.

The registry holds at most one proven connection per host; a new one replaces the old. Frames to a
host that is not connected are dropped: the host's next snapshot lets the core decide again.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from domain.events import HeldRollout, HostJoined
from domain.ids import HostId, RolloutId
from domain.states import HostKind
from domain.wire import (
    Challenge,
    Hello,
    HostBeat,
    HostSnapshot,
    KvSource,
    LeaderBeat,
    Proof,
    Refused,
)
from infra.frames import Channel, ConnectionEnded
from infra.kv_access import ACCESS_S, access_key
from infra.link import LEADER_BEAT_S
from infra.logging import get_logger
from infra.pool_frames import RoomRefused
from infra.proofs import fresh_nonce, proof, same
from stores.system.leadership import Term

HANDSHAKE_S: Final = 3.0
"""A peer that cannot prove itself within it is no host of ours."""


@dataclass(slots=True)
class Connected:
    """A proven host."""

    host_id: HostId
    epoch: int
    kind: HostKind
    channel: Channel
    snapshot: HostSnapshot
    figures: dict[str, float] = field(default_factory=dict)
    phases: dict[RolloutId, tuple[str, float]] = field(default_factory=dict)
    """What each rollout on an engine host does, as the host says, and when that was heard."""
    refused: dict[RolloutId, RoomRefused] = field(default_factory=dict)
    """Of a node: forks that it last had no room for, until it holds them."""


class Hosts:
    """The leader's side of all host connections. `feed` and `on_frame` must not wait."""

    def __init__(
        self,
        key_of: Callable[[HostId, int], Awaitable[bytes | None]],
        on_snapshot: Callable[[HostJoined], None],
        on_frame: Callable[[Connected, object], None],
    ) -> None:
        self._key_of = key_of
        self._on_snapshot = on_snapshot
        self._on_frame = on_frame
        self._term: Term | None = None
        self._server: asyncio.Server | None = None
        self._log = get_logger()
        self.connected: dict[HostId, Connected] = {}

    async def open(self) -> str:
        """Bind a free port of the loopback interface and return host:port; serve once leading."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for peer in list(self.connected.values()):
            await peer.channel.close()

    def lead(self, term: Term) -> None:
        """Admit hosts from now on."""
        self._term = term

    def send(self, host_id: HostId, epoch: int, record: object) -> bool:
        """Send to a connected host of this epoch; False when there is none."""
        peer = self.connected.get(host_id)
        if peer is None or peer.epoch != epoch:
            return False
        with contextlib.suppress(ConnectionEnded):
            peer.channel.send(record)
            return True
        return False

    def kv_source(self, host_id: HostId | None, rollout_id: RolloutId, hop: int) -> KvSource | None:
        """Where the next host may fetch what the placement with this hop left; None: nowhere.

        The key opens that one placement for a while, and its host takes it as word that it is over.
        """
        peer = None if host_id is None else self.connected.get(host_id)
        if peer is None or not peer.snapshot.may_migrate:
            return None
        expires = int(time.time() + ACCESS_S)
        key = access_key(peer.snapshot.data_key, rollout_id, hop, expires)
        return KvSource(peer.snapshot.data_address, hop, expires, key)

    async def drop(self, host_id: HostId, epoch: int, cause: str) -> None:
        """Hang up on a host whose lease ended."""
        peer = self.connected.get(host_id)
        if peer is not None and peer.epoch <= epoch:
            del self.connected[host_id]
            with contextlib.suppress(ConnectionEnded):
                peer.channel.send(Refused("lease_ended", cause))
            await peer.channel.close()

    async def beat(self) -> None:
        """Tell every host that the leader lives, for ever."""
        while True:
            if self._term is not None:
                for peer in list(self.connected.values()):
                    with contextlib.suppress(ConnectionEnded):
                        peer.channel.send(LeaderBeat(self._term.number))
            await asyncio.sleep(LEADER_BEAT_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                peer = await self._admit(channel)
            if peer is not None:
                await self._serve(peer)
        except (ConnectionEnded, TimeoutError) as ended:
            self._log.info("host.disconnected", cause=str(ended))
        except asyncio.CancelledError:
            # The process ends; asyncio would report a cancelled connection as an error.
            return
        finally:
            await channel.close()

    async def _admit(self, channel: Channel) -> Connected | None:
        hello = await channel.receive()
        if not isinstance(hello, Hello):
            return None
        if self._term is None or hello.term > self._term.number:
            channel.send(Refused("not_leading", "another scheduler leads or will lead"))
            return None
        secret = await self._key_of(hello.host_id, hello.epoch)
        if secret is None:
            channel.send(Refused("unknown_lease", "no claimed lease of this host and epoch"))
            return None
        nonce = fresh_nonce()
        parts = (hello.nonce, nonce, hello.host_id, hello.epoch, self._term.number)
        channel.send(Challenge(self._term.number, nonce, proof(self._term.key, b"leader", *parts)))
        answer = await channel.receive()
        if not isinstance(answer, Proof) or not same(answer.proof, proof(secret, b"host", *parts)):
            channel.send(Refused("bad_proof", "the host key does not match the lease"))
            return None
        snapshot = await channel.receive()
        if not isinstance(snapshot, HostSnapshot) or snapshot.host_id != hello.host_id:
            return None
        return Connected(hello.host_id, hello.epoch, snapshot.kind, channel, snapshot)

    async def _serve(self, peer: Connected) -> None:
        former = self.connected.get(peer.host_id)
        self.connected[peer.host_id] = peer
        if former is not None:
            await former.channel.close()
        snapshot = peer.snapshot
        self._log.info("host.joined", host_id=peer.host_id, epoch=peer.epoch)
        joined = HostJoined(
            host_id=peer.host_id,
            epoch=peer.epoch,
            kind=snapshot.kind,
            attempt_id=snapshot.attempt_id,
            slots=snapshot.slots,
            held=_held(snapshot),
            policy_version=snapshot.policy_version,
            kv_tokens=snapshot.kv_tokens,
            may_migrate=snapshot.may_migrate,
            room=snapshot.room,
        )
        self._on_snapshot(joined)
        try:
            while True:
                frame = await peer.channel.receive()
                if isinstance(frame, HostBeat):
                    _hear(peer, frame)
                else:
                    self._on_frame(peer, frame)
        finally:
            if self.connected.get(peer.host_id) is peer:
                del self.connected[peer.host_id]


def _hear(peer: Connected, beat: HostBeat) -> None:
    peer.figures = beat.figures
    for rollout, phase in beat.phases.items():
        if phase:
            peer.phases[rollout] = phase, time.time()
        else:
            peer.phases.pop(rollout, None)


def _held(snapshot: HostSnapshot) -> tuple[HeldRollout, ...]:
    """What the core reads: placements of an engine, tries with a sandbox or journal of a node."""
    if snapshot.kind is not HostKind.NODE:
        return snapshot.held
    made = [(held.rpartition("/"), False) for held in snapshot.sandboxes]
    made += [(held.rpartition("/"), True) for held in snapshot.starting]
    return tuple(
        HeldRollout(RolloutId(rollout), int(try_), 0, 0, is_starting=is_starting)
        for (rollout, _, try_), is_starting in made
    )
