"""One rollout without a platform: setup, the turn loop, artefacts. Who speaks is an argument.

The order of things and the words for how it ended are those of the platform's own turn loop
(`workers/rollout/episode.py`): an answer that was cut ends the rollout before the environment
replies, and the last allowed turn is replied to.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias

from venusrl.env.host.artefacts import take_artefacts
from venusrl.env.host.manifest import Manifest
from venusrl.env.host.ports import (
    EnvironmentProcess,
    InstanceKey,
    RolloutGrade,
    SandboxLost,
    SandboxPort,
)
from venusrl.env.messages import Finish, Json, Message, Rollout, Task
from venusrl.env.sandbox import CallKey, SandboxError, SandboxRequest, SandboxResult

ARTEFACT_TURN: Final = -3
"""The turn in the key of a call that takes artefacts, after the last of the environment."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One assistant message; with `end` the rollout ends so, without a reply."""

    message: Message
    finish: Finish = "stop"
    end: Literal["truncated"] | None = None


Speaker: TypeAlias = Callable[[Sequence[Message], int], Awaitable[Spoken | str]]
"""Given the conversation and the turn's number: an answer, or how the rollout ends without one."""


class Sandboxes(Protocol):
    """Gives fresh sandboxes and takes them back."""

    def agent(self, key: InstanceKey) -> AbstractAsyncContextManager[SandboxPort]:
        """The sandbox of one rollout."""
        ...

    def grader(self, rollouts: Sequence[Rollout]) -> AbstractAsyncContextManager[SandboxPort]:
        """Grading sandboxes of a group, one a rollout: its artefacts, `grader/` read-only."""
        ...


@dataclass(slots=True)
class Played:
    """A finished rollout, what the environment said at each turn, and how long its tools took."""

    rollout: Rollout
    replies: list[tuple[Message, ...] | None] = field(default_factory=list)
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rollout is played on."""

    process: EnvironmentProcess
    manifest: Manifest
    sandboxes: Sandboxes | None


async def play(
    stage: Stage, key: InstanceKey, task: Task, speak: Speaker, *, index: int = 0, seed: int = 0
) -> Played:
    """Play a rollout to its end. Raises EnvironmentFault, and what `speak` raises."""
    manifest = stage.manifest
    if stage.sandboxes is None or not manifest.sandbox:
        return await _play(stage, key, task, speak, _Place(index, seed, None))
    async with stage.sandboxes.agent(key) as port:
        played = await _play(stage, key, task, speak, _Place(index, seed, port))

        async def call(request: SandboxRequest) -> SandboxResult:
            return await port.call(CallKey(key.rollout, key.try_, ARTEFACT_TURN, 0), request)

        try:
            artefacts = await take_artefacts(manifest.artefacts, call)
        except SandboxError as error:
            raise SandboxLost("sandbox_lost", str(error)) from error
    played.rollout = replace(played.rollout, artefacts=artefacts)
    return played


async def grade_group(
    stage: Stage, rollouts: Sequence[Rollout], seed: int
) -> tuple[RolloutGrade, ...]:
    """Verdicts of a group, in fresh grading sandboxes where the package asks for them."""
    if stage.sandboxes is None or not stage.manifest.grading_sandbox:
        return await stage.process.grade(rollouts, seed, None)
    async with stage.sandboxes.grader(rollouts) as port:
        return await stage.process.grade(rollouts, seed, port)


@dataclass(frozen=True, slots=True)
class _Place:
    index: int
    seed: int
    port: SandboxPort | None


async def _play(
    stage: Stage, key: InstanceKey, task: Task, speak: Speaker, place: _Place
) -> Played:
    process = stage.process
    await process.open(key, task, place.seed, place.port)
    try:
        state = await process.setup(key)
        return await _turns(stage, key, task, speak, _Run(place.index, state))
    finally:
        await process.close(key)


@dataclass(slots=True)
class _Run:
    index: int
    state: Json
    replies: list[tuple[Message, ...] | None] = field(default_factory=list)
    tool_s: float = 0.0


async def _turns(stage: Stage, key: InstanceKey, task: Task, speak: Speaker, run: _Run) -> Played:
    messages: list[Message] = list(task.prompt)
    shown = list(messages)  # What the model reads next; all of it is in `messages`.
    limits, started = stage.manifest.limits, time.monotonic()
    end, turn = "turn_limit", 0
    while turn < limits.max_turns:
        spoken = await speak(shown, turn)
        if isinstance(spoken, str):
            end = spoken
            break
        turn += 1
        messages.append(spoken.message)
        shown.append(spoken.message)
        if spoken.end is not None:
            end = spoken.end
            break
        before = time.monotonic()
        seen = await stage.process.reply(key, turn - 1, spoken.message, spoken.finish)
        run.tool_s += time.monotonic() - before
        run.state = seen.state
        run.replies.append(seen.messages)
        if seen.messages is None:
            end = "done"
            break
        messages += seen.messages
        shown = list(seen.messages) if seen.is_rewrite else [*shown, *seen.messages]
        if time.monotonic() - started > limits.wall_s:
            end = "timeout"
            break
    rollout = Rollout(key.rollout, run.index, task, tuple(messages), end, turn, run.state)
    return Played(rollout, run.replies, run.tool_s)
