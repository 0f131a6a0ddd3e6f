"""Continuations of one border: all are live at once, brought to it by replay, then sampled to an end.

    fork n sandboxes -> open, set up, replay each -> list files -> sample each -> artefacts -> grade

A continuation that loses its sandbox or its environment has an end with a cause and no verdict; the
others go on. A replay that differs from the record ends the whole branch.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from domain.engine import EngineRefused, Finish, GenRequest, GenResult, RequestId
from domain.errors import VenusError
from domain.ids import RolloutId
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from domain.states import End
from sandboxes.node.calls import CallLog
from sandboxes.node.registry import TryKey
from sandboxes.ports import ForkFailed, Runtime, Sandbox, SandboxSpec
from venusrl.env.host.artefacts import take_artefacts
from venusrl.env.host.episode import Stage, grade_group
from venusrl.env.host.ports import EnvironmentFault, InstanceKey, RolloutGrade, SandboxLost
from venusrl.env.messages import Json, Rollout
from venusrl.env.sandbox import SandboxError
from venusrl.env.wire import BadRecord, messages_from_json
from workers.chores.branch_files import files_of
from workers.chores.branch_replay import Live, observe, records_of, replay
from workers.chores.branch_source import BranchRequest, Source
from workers.chores.environment_players import Model
from workers.chores.handling import ChoreFailed
from workers.fleet.forks import hostname_of
from workers.rollout.episode import Ending, Episode
from workers.rollout.job_spec import RolloutLimits, SamplingSpec, sampling_of
from workers.rollout.token_record import Sampled
from workers.rollout.turn_loop import turn_seed

SEED_BITS: Final = 56

T = TypeVar("T")


class OutOfTime(ChoreFailed):
    """The branch's time was up before all continuations stood at the border."""

    def __init__(self, detail: str) -> None:
        super().__init__("branch_timeout", detail)


@dataclass(slots=True)
class Ended:
    """How one continuation ended; graded where it ended by itself."""

    live: Live
    ending: Ending
    artefacts: dict[str, str] = field(default_factory=dict)
    grade: RolloutGrade | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """What all continuations of a branch share. `deadline` is on the monotonic clock."""

    branch: str
    source: Source
    asked: BranchRequest
    stage: Stage
    runtime: Runtime
    model: Model
    limits: RolloutLimits
    sampling: SamplingSpec
    deadline: float

    def episode(self) -> Episode:
        """Ids and ends as the platform's own turn loop decides them."""
        chat = self.model.folder.chat
        return Episode(chat, self.limits, self.source.rules.model.keeps_history)

    def name(self, border: int, index: int) -> RolloutId:
        """What tells a continuation from every other rollout."""
        return RolloutId(f"{self.source.rollout_id}/{self.branch}/{border}/{index}")

    def seed(self, border: int, index: int) -> int:
        """Of what it samples: another one for each continuation, the same when made again."""
        digest = hashlib.sha256(self.name(border, index).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


async def play_border(scene: Scene, border: int) -> list[Ended]:
    """All continuations from before one turn, in index order. Raises ChoreFailed."""
    lives = [_live(scene, border, index) for index in range(scene.asked.n)]
    members = [_member(scene, border, live.index) for live in lives]
    try:
        await _give_sandboxes(scene, lives, members)
        faults = await _in_time(scene, border, lives)
        ended = await _each(
            _to_end(scene, live, border) if fault is None else _already(live, fault)
            for live, fault in zip(lives, faults, strict=True)
        )
        await _grade(scene, border, ended)
        return ended
    finally:
        await asyncio.gather(
            *(scene.stage.process.close(live.key) for live in lives), return_exceptions=True
        )
        await asyncio.gather(*(scene.runtime.destroy(member) for member in members))


async def _in_time(scene: Scene, border: int, lives: list[Live]) -> list[Ending | None]:
    left = max(0.0, scene.deadline - time.monotonic())
    work = asyncio.create_task(_each(_to_border(scene, live, border) for live in lives))
    try:
        await asyncio.wait({work}, timeout=left)
        if not work.done():
            raise OutOfTime(f"turn {border} was not reached within the branch's time")
        return work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _each(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of all; the first exception, once none of them works any more."""
    tasks = [asyncio.create_task(one) for one in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _live(scene: Scene, border: int, index: int) -> Live:
    number = border * scene.asked.n + index + 1
    return Live(index, InstanceKey(scene.source.rollout_id, number), scene.episode())


def _member(scene: Scene, border: int, index: int) -> MemberKey:
    source = scene.source
    return MemberKey(
        attempt_id=source.attempt_id,
        group_id=source.group_id,
        index=source.index,
        try_=source.record.try_,
        purpose=SandboxPurpose.BRANCH,
        ordinal=border * scene.asked.n + index,
    )


async def _give_sandboxes(scene: Scene, lives: list[Live], members: list[MemberKey]) -> None:
    if not scene.stage.manifest.sandbox:
        return
    source = scene.source
    hostname = hostname_of(TryKey(source.rollout_id, source.record.try_))
    specs = [SandboxSpec(one, hostname, source.seed, SandboxLimits()) for one in members]
    try:
        sandboxes: Sequence[Sandbox] = await scene.runtime.fork(specs)
    except ForkFailed as error:
        raise ChoreFailed("sandbox_lost", str(error)) from error
    for live, sandbox in zip(lives, sandboxes, strict=True):
        live.sandbox, live.calls = sandbox, CallLog(sandbox.call)


async def _to_border(scene: Scene, live: Live, border: int) -> Ending | None:
    """Open, set up, replay; how it ended where it could not get there."""
    process, source = scene.stage.process, scene.source
    prompt = records_of(source.task.prompt)
    ending = live.episode.begin(prompt, [dict(tool) for tool in process.info.tools])
    if ending is not None:
        raise ChoreFailed("no_room", f"the opening does not fit: {ending.cause}")
    try:
        await process.open(live.key, source.task, source.seed, live.calls)
        live.state = await process.setup(live.key)
        await replay(live, process, source.record, border, scene.asked.tool_output)
        if live.sandbox is not None:
            live.files = await files_of(live.sandbox)
    except (EnvironmentFault, SandboxError, BadRecord) as fault:
        return _lost(fault)
    live.is_at_border = True
    return None


async def _already(live: Live, ending: Ending) -> Ended:
    return Ended(live, ending)


async def _to_end(scene: Scene, live: Live, border: int) -> Ended:
    """Sample turns until an end, then take what the grader reads."""
    until = min(scene.deadline, time.monotonic() + scene.limits.wall_s)
    try:
        ending = await _turns(scene, live, border, until)
        artefacts: dict[str, str] = {}
        if live.calls is not None:
            artefacts = await take_artefacts(scene.stage.manifest.artefacts, live.calls.run)
    except (EnvironmentFault, SandboxError, BadRecord) as fault:
        return Ended(live, _lost(fault))
    return Ended(live, ending, artefacts)


async def _turns(scene: Scene, live: Live, border: int, until: float) -> Ending:
    episode, process = live.episode, scene.stage.process
    while True:
        made = await _generate(scene, live, border, until)
        if made.finish is Finish.ERROR:
            raise ChoreFailed("engine_failed", made.error or "the engine failed")
        if made.finish is Finish.ABORT and not made.token_ids:
            return _out_of_time(scene)
        ending = episode.answer(
            Sampled(
                made.token_ids, made.logprobs, made.versions, made.finish.value, made.generate_s
            )
        )
        if ending is not None:
            return ending
        intent = episode.intent
        assert intent is not None, "an answered turn that goes on leaves an intent"
        began = time.monotonic()
        try:
            async with asyncio.timeout(until - began):
                seen = await process.reply(live.key, intent.turn, intent.parsed.told, "stop")
        except TimeoutError:
            return _out_of_time(scene)
        said = records_of(seen.messages or ())
        ending = observe(live, intent, seen, said, time.monotonic() - began)
        if ending is not None:
            return ending


async def _generate(scene: Scene, live: Live, border: int, until: float) -> GenResult:
    """One turn; what time cut off comes back with `abort`."""
    episode, engine, name = live.episode, scene.model.engine, scene.name(border, live.index)
    turn = episode.turns
    sampling = sampling_of(
        scene.sampling,
        episode.budget().max_tokens,
        turn_seed(scene.seed(border, live.index), scene.source.record.try_, turn),
        scene.model.folder.chat.stop_token_ids,
    )
    request = GenRequest(
        request_id=RequestId(f"{name}/{turn}"),
        rollout_id=name,
        group_id=scene.source.group_id,
        tenant=scene.source.tenant,
        segment=episode.segment,
        token_ids=episode.prompt(),
        sampling=sampling,
    )
    work = asyncio.ensure_future(engine.generate(request))
    try:
        await asyncio.wait({work}, timeout=max(0.0, until - time.monotonic()))
        if not work.done():
            await engine.abort((request.request_id,))
        return await work
    except EngineRefused as refused:
        raise ChoreFailed(refused.reason.value, refused.detail) from refused
    finally:
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def _out_of_time(scene: Scene) -> Ending:
    is_ours = time.monotonic() >= scene.deadline
    return Ending(End.TIMEOUT, "the branch's own time" if is_ours else f"{scene.limits.wall_s:g} s")


def _lost(fault: EnvironmentFault | SandboxError | BadRecord) -> Ending:
    is_sandbox = isinstance(fault, SandboxLost | SandboxError)
    return Ending(End.SANDBOX_LOST if is_sandbox else End.ENV_FAILED, str(fault)[:2000])


async def _grade(scene: Scene, border: int, ended: list[Ended]) -> None:
    """Verdicts of those that ended by themselves, as one group. A fault leaves them without one."""
    whole = [one for one in ended if one.ending.end not in (End.SANDBOX_LOST, End.ENV_FAILED)]
    if not whole:
        return
    rollouts = [_rollout(scene, border, one) for one in whole]
    try:
        grades = await grade_group(scene.stage, rollouts, scene.source.grading_seed)
    except (EnvironmentFault, SandboxError, VenusError) as fault:
        raise ChoreFailed("not_graded", str(fault)) from fault
    for one, grade in zip(whole, grades, strict=True):
        one.grade = grade


def _rollout(scene: Scene, border: int, one: Ended) -> Rollout:
    episode = one.live.episode
    return Rollout(
        id=scene.name(border, one.live.index),
        index=one.live.index,
        task=scene.source.task,
        messages=messages_from_json(cast("Sequence[Json]", episode.messages)),
        end=one.ending.end.value,
        turns=episode.turns,
        state=json.loads(json.dumps(one.live.state)),
        artefacts=one.artefacts,
    )
