"""One rollout's try on this host, as one asyncio task: attach, then turns until an end.

    attach -> [restore] -> generate -> journal the intent and await the reply -> append -> generate ...
       +-> [fetch the pages that another host has]         beside the wait for a tool that still runs

Nothing is sampled before `attach` has raised the agent's hop. An intent that the journal holds
without a reply is sent again with its own tokens, never sampled again. The end is natural
(`Ending`), the try's (`TryEnded`), or nobody's business any more (`Superseded`).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from domain.engine import (
    NAN_LOGITS,
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
    Refusal,
    RequestId,
)
from domain.events import TurnFinished, TurnSampled
from domain.ids import RolloutId
from domain.schedule import WaitReason
from domain.states import End
from domain.wire import Attached, JournalTurn, KvSource, Place, TakeTurn
from infra import failpoints
from infra.clock import Clock
from infra.pool_frames import InGeneration
from venusrl.env.wire import BadRecord, message_to_json
from workers.models.chat import ChatFormat, ParsedAnswer
from workers.rollout import seams
from workers.rollout.agent_client import AgentLost, AgentRefusal, NodeAgent
from workers.rollout.episode import Ending, Episode, Intent
from workers.rollout.gaps import GenerationTimes, ToolGaps
from workers.rollout.job_spec import RolloutLimits, SamplingSpec, sampling_of
from workers.rollout.kv_transfer.fetcher import Fetched
from workers.rollout.meter import HostMeter, Use
from workers.rollout.outcomes import EngineFault, TryEnded, failure_of
from workers.rollout.ports import Engine
from workers.rollout.prefixes import SharedPrefixes
from workers.rollout.token_record import Sampled
from workers.rollout.weights import VersionGate

QUEUE_FULL_PAUSE_S: Final = 0.5
"""An engine with thousands of waiting turns needs far longer than this to make room."""

SEED_BITS: Final = 63
"""Engines take seeds of 0..2^63-1."""

T = TypeVar("T")


class _OutOfTime(Exception):
    """The rollout's wall time ended first."""


@dataclass(frozen=True, slots=True)
class LoopPorts:
    """What all rollouts of a host share."""

    engine: Engine
    gate: VersionGate
    chat: ChatFormat
    clock: Clock
    tell: Callable[[TurnSampled | TurnFinished], None]
    meter: HostMeter
    gaps: ToolGaps = field(default_factory=ToolGaps)
    times: GenerationTimes = field(default_factory=GenerationTimes)
    prefixes: SharedPrefixes = field(default_factory=SharedPrefixes)
    fetch: Callable[[RolloutId, KvSource], Awaitable[Fetched | None]] | None = None
    """Brings the pages of a rollout that another host had; None when they cannot be had."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How this rollout samples and what bounds it."""

    tenant: str
    sampling: SamplingSpec
    limits: RolloutLimits
    keeps_history: bool = False


class TurnLoop:
    """The try that `place` names. `run` once; `episode` holds what it has made so far."""

    def __init__(self, place: Place, plan: RolloutPlan, agent: NodeAgent, ports: LoopPorts) -> None:
        self._place = place
        self._plan = plan
        self._agent = agent
        self._ports = ports
        self._timer: asyncio.Task[None] | None = None
        self._fetching: asyncio.Future[Fetched | None] | None = None
        self.rank = place.rank
        self.phase = WaitReason.ATTACHING
        """What this try does at the moment, as far as it knows."""
        self.episode = Episode(ports.chat, plan.limits, plan.keeps_history)
        self.use = Use()
        """What it has used of its host's time so far."""

    async def run(self) -> Ending:
        """Run to a natural end. Raises TryEnded, Superseded or EngineFault."""
        place = self._place
        self._timer = asyncio.create_task(self._ports.clock.sleep(self._plan.limits.wall_s))
        try:
            attached = await self._agent.attach(place.rollout_id, place.try_, place.hop)
            failpoints.hit(seams.ATTACHED)
            if place.kv is not None and self._ports.fetch is not None:
                fetching = self._ports.fetch(place.rollout_id, place.kv)
                self._fetching = asyncio.ensure_future(fetching)
            ending = self._restore(attached)
            while ending is None:
                ending = await self._turn()
            self.phase = WaitReason.SAVING
            return ending
        except (AgentLost, AgentRefusal) as error:
            raise failure_of(error) from error
        except BadRecord as error:
            raise TryEnded(End.ENV_FAILED, f"bad_reply: {error}") from error
        except _OutOfTime:
            self.phase = WaitReason.SAVING
            return Ending(End.TIMEOUT, f"{self._plan.limits.wall_s:g} s")
        finally:
            self._timer.cancel()
            await self._drop_fetched()

    def _restore(self, attached: Attached) -> Ending | None:
        """Rebuild the ids from the journal: sampled ones verbatim, replies rendered as before."""
        episode = self.episode
        ending = episode.begin(attached.opening, attached.tools)
        place = self._place
        self._ports.prefixes.join(place.group_id, place.rollout_id, episode.prompt())
        for turn in attached.turns:
            if ending is not None or episode.intent is not None or turn.turn != episode.turns:
                raise TryEnded(End.ENV_FAILED, f"the journal does not fit at turn {turn.turn}")
            sampled = Sampled(turn.token_ids, turn.logprobs, turn.versions, turn.finish)
            ending = episode.answer(sampled)
            if ending is None and turn.replied:
                ending = episode.observe(turn)
        if episode.is_empty and ending is None:
            raise TryEnded(End.ENV_FAILED, "empty_prompt")
        if ending is None and episode.finished_turns and episode.intent is None:
            self._tell_finished()  # The host before this one may have died with it untold.
        return ending

    async def _turn(self) -> Ending | None:
        is_new = self.episode.intent is None
        if is_new:
            ending = await self._generate_and_say()
            failpoints.hit(seams.GENERATED)
            if ending is not None:
                return ending
        intent = self.episode.intent
        assert intent is not None, "an answered turn that goes on leaves an intent"
        self.phase = WaitReason.IN_TOOL
        with self._ports.meter.in_tool(self.use):
            reply = await self._in_time(self._take_turn(intent, is_new))
        failpoints.hit(seams.TAKEN)
        self._ports.gaps.add(intent.parsed, reply.tool_s)
        ending = self.episode.observe(reply)
        if ending is None:
            self._tell_finished()
        return ending

    async def _take_turn(self, intent: Intent, is_new: bool) -> JournalTurn:
        """Hand the intent to the agent, then say that a gap began; nobody says it of a gap that goes
        on, else a rollout that moved in it might move again."""
        work = asyncio.ensure_future(self._agent.take_turn(self._request(intent)))
        try:
            await asyncio.sleep(0)  # The intent is on its way before the leader can hear of it.
            if is_new and not work.done():
                self._tell_sampled(intent)
            return await work
        finally:
            await _cancelled(work)

    async def _generate_and_say(self) -> Ending | None:
        """Generate, and tell the agent before that nobody needs the sandbox meanwhile."""
        place, ports = self._place, self._ports
        started = ports.clock.monotonic()
        self._agent.hint(
            InGeneration(
                rollout_id=place.rollout_id,
                try_=place.try_,
                hop=place.hop,
                turn=self.episode.turns,
                expected_s=ports.times.expected_s(),
                rank=self.rank,
            )
        )
        ending = await self._generate()
        ports.times.add(ports.clock.monotonic() - started)
        return ending

    async def _generate(self) -> Ending | None:
        place, ports = self._place, self._ports
        pinned = place.pinned_version if place.evaluation else None
        self.phase = WaitReason.WAITS_FOR_WEIGHTS
        weights_sha = await self._in_time(ports.gate.admit(pinned))
        fetched = await self._take_fetched()
        turn = self.episode.turns
        request = GenRequest(
            request_id=RequestId(f"{place.rollout_id}/{place.try_}/{place.hop}/{turn}"),
            rollout_id=place.rollout_id,
            group_id=place.group_id,
            tenant=self._plan.tenant,
            segment=self.episode.segment,
            token_ids=self.episode.prompt(),
            sampling=sampling_of(
                self._plan.sampling,
                self.episode.budget().max_tokens,
                turn_seed(place.seed, place.try_, turn),
                ports.chat.stop_token_ids,
            ),
            rank=self.rank,
            weights_sha=weights_sha,
            kv_source=None if fetched is None else fetched.ticket,
        )
        self.phase = WaitReason.RUNNING
        try:
            with self._ports.meter.generating(self.use):
                result = await self._sample(request)
        finally:
            if fetched is not None:
                fetched.close()
        if result.finish is Finish.ABORT and not result.token_ids:
            raise _OutOfTime
        if pinned is not None and any(version != pinned for version in result.versions):
            raise TryEnded(End.ENGINE_LOST, "version_split")
        return self.episode.answer(
            Sampled(
                result.token_ids,
                result.logprobs,
                result.versions,
                result.finish.value,
                result.generate_s,
            )
        )

    async def _take_fetched(self) -> Fetched | None:
        """The pages that were asked for after the attach, once; the fetch has a deadline of its own."""
        fetching = self._fetching
        if fetching is None:
            return None
        assert self._timer is not None
        both: set[asyncio.Future[Any]] = {fetching, self._timer}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not fetching.done():
            raise _OutOfTime
        self._fetching = None
        return fetching.result()

    async def _drop_fetched(self) -> None:
        """Let go of pages that nobody took: the rollout has ended or left first."""
        fetching, self._fetching = self._fetching, None
        if fetching is None:
            return
        await _cancelled(fetching)
        if not fetching.cancelled() and (fetched := fetching.result()) is not None:
            fetched.close()

    async def _sample(self, request: GenRequest) -> GenResult:
        """Generate, waiting while the queue is full. What time cut off comes back with `abort`."""
        while True:
            try:
                result = await self._generate_or_abort(request)
            except EngineRefused as refused:
                await self._after_refusal(refused)
                continue
            if result.error == NAN_LOGITS:
                # The engine is sound and serves the others; the next try samples other tokens.
                raise TryEnded(End.ENGINE_LOST, NAN_LOGITS)
            if result.finish is Finish.ERROR:
                raise EngineFault(result.error or "the engine failed")
            if result.finish is Finish.ABORT and not self._is_late:
                raise TryEnded(End.ENGINE_LOST, result.error or "aborted")
            return result

    async def _generate_or_abort(self, request: GenRequest) -> GenResult:
        assert self._timer is not None
        engine = self._ports.engine
        work = asyncio.ensure_future(engine.generate(request))
        try:
            await asyncio.wait({work, self._timer}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                # Shielded: a call that the engine's thread has taken must find its caller alive.
                await asyncio.shield(asyncio.ensure_future(engine.abort((request.request_id,))))
            return await work
        finally:
            await _cancelled(work)

    async def _after_refusal(self, refused: EngineRefused) -> None:
        match refused.reason:
            case Refusal.QUEUE_FULL:
                self.phase = WaitReason.WAITS_FOR_SLOT
                await self._in_time(self._ports.clock.sleep(QUEUE_FULL_PAUSE_S))
                self.phase = WaitReason.RUNNING
            case Refusal.WEIGHTS_MISMATCH:
                raise TryEnded(End.ENGINE_LOST, "version_split") from refused
            case Refusal.CLOSED:
                raise EngineFault(str(refused)) from refused
            case _:
                raise TryEnded(End.ENGINE_LOST, f"engine_refused {refused}") from refused

    @property
    def _is_late(self) -> bool:
        return self._timer is not None and self._timer.done()

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, or _OutOfTime when the rollout's time is over first."""
        assert self._timer is not None
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, self._timer}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _OutOfTime
            return task.result()
        finally:
            await _cancelled(task)

    def _request(self, intent: Intent) -> TakeTurn:
        place, sampled = self._place, intent.sampled
        return TakeTurn(
            request=0,  # the client numbers it
            rollout_id=place.rollout_id,
            try_=place.try_,
            hop=place.hop,
            turn=intent.turn,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish="stop",
            assistant=assistant_record(intent.parsed),
        )

    def _tell_sampled(self, intent: Intent) -> None:
        place, ports = self._place, self._ports
        ports.tell(
            TurnSampled(
                rollout_id=place.rollout_id,
                try_=place.try_,
                hop=place.hop,
                turn=self.episode.turns,
                tokens=self.episode.tokens,
                expected_tool_s=ports.gaps.expected_s(intent.parsed),
                shared_tokens=ports.prefixes.tokens(place.group_id),
            )
        )

    def _tell_finished(self) -> None:
        place, episode = self._place, self.episode
        assert episode.oldest_version is not None, "a turn was sampled"
        self._ports.tell(
            TurnFinished(
                rollout_id=place.rollout_id,
                try_=place.try_,
                hop=place.hop,
                turn=episode.finished_turns,
                tokens=episode.tokens,
                sampled_tokens=episode.sampled_tokens,
                oldest_version=episode.oldest_version,
                tool_s=episode.tool_s,
                shared_tokens=self._ports.prefixes.tokens(place.group_id),
            )
        )


def assistant_record(parsed: ParsedAnswer) -> dict[str, object]:
    """The assistant message as JSON; a call that could not be read says why under `error`."""
    return dict(message_to_json(parsed.told))


def turn_seed(seed: int, try_: int, turn: int) -> int:
    """Seed of one turn: the same placement after a crash samples the same tokens."""
    digest = hashlib.blake2b(f"{seed}/{try_}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    """End work that nobody waits for any more, and wait until it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
