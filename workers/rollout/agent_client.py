"""Connection of a rollout host to one node agent: journal, turns, seals.

Requests carry numbers and may overlap; a broken connection fails those in flight, each of which is
sent again on a new connection: attach, turn and seal are idempotent at the agent. Only when the
agent cannot be reached again, or is silent past a deadline, is it `AgentLost`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NoReturn, Protocol

from domain.errors import VenusError
from domain.ids import HostId, RolloutId
from domain.wire import (
    AgentHello,
    AgentRefused,
    Attach,
    Attached,
    JournalTurn,
    Seal,
    Sealed,
    TakeTurn,
    TurnReply,
)
from infra.clock import Clock
from infra.frames import Channel, ConnectionEnded, connect
from infra.pool_frames import InGeneration
from infra.proofs import fresh_nonce, proof

DIAL_TIMEOUT_S: Final = 2.0
"""An agent's listener answers at once or its node is gone."""

TRIES: Final = 5
"""Connections that one request is sent on; a process that died does not come back at its address."""

BACKOFF_S: Final = 0.1
"""First pause between two connections, doubled each time: 1.5 s in all."""

ATTACH_DEADLINE_S: Final = 20.0
"""Attach only reads a journal; the slack is for a node whose processors are all busy."""

SEAL_DEADLINE_S: Final = 60.0
"""A seal reads artefacts out of the sandbox and destroys it."""

IN_FLIGHT_MAX: Final = 4096
"""Requests of one connection; a host has far fewer rollouts."""


class AgentLost(VenusError):
    """The node agent is gone, and with it the sandboxes of its rollouts."""

    code = "node_agent_lost"


class AgentRefusal(VenusError):
    """The agent refused: `reason` is hop, unknown, intent, env_failed or sandbox_lost."""

    code = "agent_refused"

    def __init__(self, reason: str, cause: str) -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(f"{reason}: {cause}")
        self.reason = reason
        self.cause = cause


class NodeAgent(Protocol):
    """What the turn loop asks of the agent that holds a rollout's journal."""

    async def attach(self, rollout_id: RolloutId, try_: int, hop: int) -> Attached:
        """Raise the agent's hop and return the journal."""
        ...

    async def take_turn(self, turn: TakeTurn) -> JournalTurn:
        """Journal the intent, wait for the environment's reply; the same intent twice is one."""
        ...

    def hint(self, frame: InGeneration) -> None:
        """Say that a turn is generated from now on; never waits, and may be lost."""
        ...

    async def seal(self, rollout_id: RolloutId, try_: int, hop: int) -> Sealed:
        """Seal the journal and give the sandbox back."""
        ...


class AgentClient:
    """`NodeAgent` over one framed connection at a time, dialled when first needed."""

    def __init__(
        self, address: str, key: str, *, host_id: HostId, epoch: int, clock: Clock
    ) -> None:
        self._address = address
        self._key = key
        self._host_id = host_id
        self._epoch = epoch
        self._clock = clock
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._channel: Channel | None = None
        self._dialling: asyncio.Task[Channel] | None = None
        self._readers: set[asyncio.Task[None]] = set()

    async def attach(self, rollout_id: RolloutId, try_: int, hop: int) -> Attached:
        """Raise the agent's hop and return the journal."""
        answer = await self._ask(
            lambda number: Attach(number, rollout_id, try_, hop), ATTACH_DEADLINE_S
        )
        if not isinstance(answer, Attached):
            _unexpected(answer)
        return answer

    async def take_turn(self, turn: TakeTurn) -> JournalTurn:
        """Journal the intent and wait for the reply; the caller's own deadline bounds the wait."""
        answer = await self._ask(lambda number: replace(turn, request=number), None)
        if not isinstance(answer, TurnReply):
            _unexpected(answer)
        return answer.turn

    def hint(self, frame: InGeneration) -> None:
        """Say that a turn is generated from now on; lost where nothing is connected."""
        channel = self._channel
        if channel is not None and not channel.closed.is_set():
            with contextlib.suppress(ConnectionEnded):
                channel.send(frame)

    async def seal(self, rollout_id: RolloutId, try_: int, hop: int) -> Sealed:
        """Seal the journal and give the sandbox back."""
        answer = await self._ask(
            lambda number: Seal(number, rollout_id, try_, hop), SEAL_DEADLINE_S
        )
        if not isinstance(answer, Sealed):
            _unexpected(answer)
        return answer

    async def close(self) -> None:
        """Hang up; requests in flight fail."""
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        # A reader ends by itself once its connection is over; cancelled, it would not close it.
        await asyncio.gather(*self._readers)

    async def _ask(self, request: Callable[[int], object], deadline_s: float | None) -> object:
        """Send on one connection after the other until an answer comes. Raises the two errors."""
        pause_s = BACKOFF_S
        for remaining in reversed(range(TRIES)):
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._exchange(request)
            except TimeoutError as error:
                raise AgentLost(f"{self._address} is silent for {deadline_s} s") from error
            except ConnectionEnded as error:
                if not remaining:
                    raise AgentLost(str(error)) from error
            await self._clock.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _exchange(self, request: Callable[[int], object]) -> object:
        channel = await self._connected()
        assert len(self._waiting) < IN_FLIGHT_MAX, "more requests than rollouts"
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            channel.send(request(number))
            received = await answer
        finally:
            del self._waiting[number]
        if isinstance(received, AgentRefused):
            raise AgentRefusal(received.code, received.cause)
        return received

    async def _connected(self) -> Channel:
        if self._channel is not None and not self._channel.closed.is_set():
            return self._channel
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._dial())
        # Shielded: one rollout that is forgotten must not hang up on the others that wait.
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> Channel:
        try:
            channel = await connect(self._address, DIAL_TIMEOUT_S)
            nonce = fresh_nonce()
            proven = proof(self._key.encode(), nonce, self._host_id, self._epoch)
            channel.send(AgentHello(self._host_id, self._epoch, nonce, proven))
            self._channel = channel
            reader = asyncio.create_task(self._read(channel))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
            return channel
        finally:
            self._dialling = None

    async def _read(self, channel: Channel) -> None:
        try:
            while True:
                self._settle(await channel.receive())
        except ConnectionEnded as ended:
            cause = str(ended)
        if self._channel is channel:
            self._channel = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionEnded(cause))
        await channel.close()

    def _settle(self, record: object) -> None:
        if not isinstance(record, (Attached, TurnReply, Sealed, AgentRefused)):
            raise ConnectionEnded(f"the agent sent {type(record).__name__}")
        if isinstance(record, AgentRefused) and record.request not in self._waiting:
            # A number that nobody waits for: a forgotten rollout's, or 0 for the whole connection.
            if record.request == 0:
                raise ConnectionEnded(f"refused: {record.code} {record.cause}")
            return
        answer = self._waiting.get(record.request)
        if answer is not None and not answer.done():
            answer.set_result(record)


class NodeAgents(Protocol):
    """Agents by where the leader says that they serve."""

    def client(self, address: str, key: str) -> NodeAgent:
        """The agent at an address; another key is another agent process."""
        ...


class AgentPool:
    """`NodeAgents`: one client per node agent that this host's rollouts live at."""

    def __init__(self, host_id: HostId, epoch: int, clock: Clock) -> None:
        self._host_id = host_id
        self._epoch = epoch
        self._clock = clock
        self._clients: dict[tuple[str, str], AgentClient] = {}

    def client(self, address: str, key: str) -> AgentClient:
        """The client for an address; another key is another agent process."""
        found = self._clients.get((address, key))
        if found is None:
            found = AgentClient(
                address, key, host_id=self._host_id, epoch=self._epoch, clock=self._clock
            )
            self._clients[address, key] = found
        return found

    async def close(self) -> None:
        """Hang up on all."""
        for client in self._clients.values():
            await client.close()


def _unexpected(answer: object) -> NoReturn:
    raise AgentLost(f"the agent answered with {type(answer).__name__}")
