"""Attach, turns and seals of held tries: the journal's rules joined to the environment's replies.

A reply runs once, in a task of its own; hosts that come and go only wait for it. It ends with one
record of observation and snapshot, or with the failure of the try. An environment process that was
restarted gets the instance back from its snapshot, if the environment can be resumed.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Final, cast

from domain.errors import VenusError
from domain.states import End
from domain.wire import (
    Attach,
    Attached,
    JournalTurn,
    Seal,
    Sealed,
    TakeTurn,
    TurnReply,
)
from infra import failpoints
from infra.clock import Clock
from infra.pool_frames import InGeneration
from sandboxes.node.generation import Generation
from sandboxes.node.journal import Intent, IntentRefused, Reply
from sandboxes.node.registry import TryKey, TryState
from venusrl.env.host.artefacts import STATE_ARTEFACT, take_artefacts
from venusrl.env.host.judges import added
from venusrl.env.host.ports import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentProcess,
    SandboxLost,
)
from venusrl.env.messages import Finish, Json, Message
from venusrl.env.sandbox import SandboxError
from venusrl.env.wire import BadRecord, message_from_json, message_to_json
from workers.fleet import seams
from workers.fleet.environment_pool import EnvironmentPool
from workers.fleet.holdings import FleetTry, Holdings
from workers.fleet.judged import to_metrics


class TurnRefused(VenusError):
    """A request that the agent does not serve; `reason` is a code of `wire.AgentRefused`."""

    code = "agent_refused"

    def __init__(self, reason: str, cause: str) -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(f"{reason}: {cause}")
        self.reason = reason
        self.cause = cause


GENERATION_S_MAX: Final = 3600.0
"""A host's word about the future counts for so long at most."""

NOT_OPEN: Final = "the try is sealed or not held here"
"""Cause of `unknown`."""


@dataclass(frozen=True, slots=True)
class TurnServer:
    """Serves the requests of rollout hosts. Every method may raise TurnRefused."""

    holdings: Holdings
    environments: EnvironmentPool
    clock: Clock

    def attach(self, frame: Attach) -> Attached:
        """Raise the hop and return the journal, in one operation."""
        held = self._find(TryKey(frame.rollout_id, frame.try_), frame.hop, may_raise=True)
        held.hop = frame.hop
        return Attached(
            request=frame.request,
            opening=tuple(_record(message) for message in held.origin.task.prompt),
            turns=held.journal.turns,
            tools=held.tools,
        )

    def note(self, frame: InGeneration) -> None:
        """A hint: its turn is generated. Late ones, and those of hosts that are over, change nothing."""
        held = self.holdings.registry.get(TryKey(frame.rollout_id, frame.try_))
        if held is None or held.state is not TryState.READY or held.hop != frame.hop:
            return
        if held.journal.is_waiting or frame.turn != len(held.journal.turns):
            return
        expected_s = min(max(0.0, frame.expected_s), GENERATION_S_MAX)
        self.holdings.generates(held, Generation(self.clock.monotonic(), expected_s, frame.rank))

    async def take_turn(self, frame: TakeTurn) -> TurnReply:
        """Journal the intent, run the reply if it is new, wait for its record."""
        held = self._find(TryKey(frame.rollout_id, frame.try_), frame.hop)
        try:
            message = message_from_json(cast("Json", frame.assistant))
            is_new = held.state is TryState.READY and held.journal.intend(_intent(frame))
        except (IntentRefused, BadRecord) as error:
            raise TurnRefused("intent", str(error)) from error
        if is_new:
            if held.calls is not None:
                held.calls.acknowledge(frame.turn - 1)
            failpoints.hit(seams.INTENT_JOURNALLED)
            finish: Finish = "length" if frame.finish == "length" else "stop"
            held.reply = self.holdings.spawn(self._reply(held, frame.turn, message, finish))
        return TurnReply(frame.request, await self._recorded(held, frame.turn))

    async def seal(self, frame: Seal) -> Sealed:
        """Take the artefacts, give sandbox and instance back; the same answer when asked again."""
        held = self._find(TryKey(frame.rollout_id, frame.try_), frame.hop)
        if held.sealing is None:
            held.sealing = asyncio.create_task(self._seal(held))
        sealed = await asyncio.shield(held.sealing)
        if sealed is None:
            raise self._failed(held)
        return Sealed(frame.request, sealed.artefacts, sealed.metrics)

    def _find(self, key: TryKey, hop: int, may_raise: bool = False) -> FleetTry:
        held = self.holdings.registry.get(key)
        if held is None or held.state is TryState.FORKING:
            raise TurnRefused("unknown", NOT_OPEN)
        if hop < held.hop or (hop > held.hop and not may_raise):
            raise TurnRefused("hop", f"hop {hop} where {held.hop} is attached")
        if held.failure is not None:
            held.hop = hop
            raise self._failed(held)
        return held

    def _failed(self, held: FleetTry) -> TurnRefused:
        if held.failure is None:
            return TurnRefused("unknown", NOT_OPEN)
        return TurnRefused(held.failure.end.value, held.failure.cause)

    async def _recorded(self, held: FleetTry, number: int) -> JournalTurn:
        if number >= len(held.journal.turns):
            raise TurnRefused("unknown", NOT_OPEN)
        if not held.journal.turn(number).replied and held.reply is not None:
            # Not awaited itself: neither its cancellation nor its end may cancel this request.
            await asyncio.wait({held.reply})
        turn = held.journal.turn(number)
        if not turn.replied:
            raise self._failed(held)
        return turn

    async def _reply(self, held: FleetTry, turn: int, message: Message, finish: Finish) -> None:
        started = self.clock.monotonic()
        try:
            await self.holdings.wake(held)
            process = await self._process(held)
            seen = await process.reply(held.instance, turn, message, finish)
        except (SandboxLost, SandboxError) as fault:
            self.holdings.fail(held, End.SANDBOX_LOST, str(fault))
            return
        except EnvironmentFault as fault:
            self.holdings.fail(held, End.ENV_FAILED, str(fault))
            return
        failpoints.hit(seams.REPLIED)
        if held.failure is not None or held.is_released:
            return
        self.environments.succeeded(held.origin.environment)
        spoken = seen.messages or ()
        held.journal.record(
            Reply(
                messages=tuple(_record(one) for one in spoken),
                done=seen.messages is None,
                tool_s=self.clock.monotonic() - started,
                state=seen.state,
                is_rewrite=seen.is_rewrite,
            ),
            spoken if seen.is_rewrite else (message, *spoken),
        )
        self.holdings.turn_ended(held)

    async def _process(self, held: FleetTry) -> EnvironmentProcess:
        """The process with this try's instance; restored there if the former process died."""
        if held.process is not None and held.process.fault is None:
            return held.process
        former, package, origin = held.process, held.package, held.origin
        assert package is not None, "a ready try has its package"
        if not package.manifest.resumable:
            detail = "its environment cannot be resumed"
            raise (former.fault if former else None) or EnvironmentCrashed("process_exited", detail)
        if held.process is not None:
            added(held.judged, held.process.judged(held.instance))
        process = await self.environments.get(origin.environment, package, origin.config)
        held.process = process
        await process.open(held.instance, origin.task, held.seed, held.calls)
        await process.restore(held.instance, held.journal.state, held.journal.history)
        return process

    async def _seal(self, held: FleetTry) -> Sealed | None:
        """None when the try failed before its artefacts were safe."""
        if held.reply is not None and not held.reply.done():
            held.reply.cancel()
            await asyncio.wait({held.reply})
        try:
            await self.holdings.wake(held)
            artefacts = await _artefacts(held)
        except SandboxError as error:
            self.holdings.fail(held, End.SANDBOX_LOST, str(error))
        if held.failure is not None or held.is_released:
            return None
        held.state = TryState.SEALED
        if held.process is not None:
            added(held.judged, held.process.judged(held.instance))
        await self.holdings.dispose(held)
        calls = 0 if held.calls is None else held.calls.total
        held.calls = None
        metrics = {"sandbox_calls": float(calls), **to_metrics(held.judged)}
        return Sealed(0, artefacts, metrics)


async def _artefacts(held: FleetTry) -> dict[str, str]:
    """The listed files that exist, and the environment's last state. Raises SandboxError if lost."""
    found: dict[str, str] = {}
    if held.journal.state is not None:
        found[STATE_ARTEFACT] = json.dumps(held.journal.state)
    if held.calls is None or held.package is None:
        return found
    found |= await take_artefacts(held.package.manifest.artefacts, held.calls.run)
    return found


def _intent(frame: TakeTurn) -> Intent:
    return Intent(frame.turn, frame.token_ids, frame.logprobs, frame.versions, frame.finish)


def _record(message: Message) -> dict[str, object]:
    return dict(message_to_json(message))
