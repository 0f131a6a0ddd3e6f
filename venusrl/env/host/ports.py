"""The environment port: what the node agent asks of an environment, and what can go wrong.

One environment process serves many instances, one a rollout's try. It runs user code, so every
method may fail with an `EnvironmentFault`; the kinds below are closed and each carries a cause.
A fault of kind `crashed`, `hung` or `protocol` ends the process and with it every open instance.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from venusrl.env.host.judges import JudgeUse
from venusrl.env.messages import Finish, Json, Message, Rollout, Task
from venusrl.env.rewards import ComponentSpec
from venusrl.env.sandbox import CallKey, SandboxRequest, SandboxResult
from venusrl.env.values import Value

SETUP_TURN: Final = -1
"""The turn in the key of a sandbox call made by `setup`."""

GRADING_TURN: Final = -2
"""The turn in the key of a sandbox call made by a reward, whose try is always 0."""

Cause: TypeAlias = Literal[
    "not_isolated",
    "process_exited",
    "process_killed",
    "loop_blocked",
    "call_timeout",
    "bad_frame",
    "raised",
    "bad_reply",
    "bad_state",
    "bad_task",
    "empty_prompt",
    "import_failed",
    "unknown_instance",
    "sandbox_lost",
    "secret_unavailable",
    "stopped",
]
"""Closed set of what went wrong, for ledgers and people."""


class EnvironmentFault(Exception):
    """The environment gave no answer; `detail` is for a person."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause: Cause = cause
        self.detail = detail


class EnvironmentCrashed(EnvironmentFault):
    """Its process ended; all its instances are gone."""


class EnvironmentHung(EnvironmentFault):
    """No answer in time: `call_timeout` ends one instance, `loop_blocked` the whole process."""


class ProtocolError(EnvironmentFault):
    """Its process said something that no runner says; it was killed for that."""


class EnvironmentRaised(EnvironmentFault):
    """User code raised or answered wrongly; this instance only."""


class SandboxLost(EnvironmentFault):
    """The instance's sandbox went away during the call, whatever user code made of that."""


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """One rollout's try, the identity of an instance."""

    rollout: str
    try_: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What `reply` and the snapshot after it gave; `messages` None means that the episode ended.

    With `is_rewrite` the messages are the whole conversation from here on.
    """

    messages: tuple[Message, ...] | None
    state: Json
    is_rewrite: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What the entry class declares; `tools` are function schemas for chat templates."""

    tools: tuple[Mapping[str, Json], ...] = ()
    components: tuple[ComponentSpec, ...] = ()

    @property
    def weights(self) -> dict[str, float]:
        """Weight by component, in the order of declaration."""
        return {spec.name: spec.weight for spec in self.components if spec.kind != "metric"}

    @property
    def full_marks(self) -> float:
        """The total of a rollout with 1 for every reward and no penalty: where it passes."""
        # The sum of huge weights stays a number, which no total reaches.
        return min(sum(w for w in self.weights.values() if w > 0), sys.float_info.max)


@dataclass(frozen=True, slots=True)
class RolloutGrade:
    """The verdict on one rollout: components, their weighted total, and metrics."""

    rollout: str
    components: Mapping[str, Value]
    total: Value
    metrics: Mapping[str, float]
    judges: Mapping[str, JudgeUse] = field(default_factory=dict)
    """What its rewards asked of judges, by name."""
    full_marks: float = 1.0
    """The sum of the positive weights, by which the total passes or not."""


class SandboxPort(Protocol):
    """Where an instance's sandbox calls go; raises `SandboxError` for a call without a result."""

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call, or hand out the result of that key again."""
        ...


class EnvironmentProcess(Protocol):
    """A running environment. Calls may overlap between instances, never within one."""

    @property
    def info(self) -> EnvironmentInfo:
        """What the entry class declares."""
        ...

    @property
    def lag_s(self) -> float:
        """Newest lag of the process's event loop."""
        ...

    @property
    def fault(self) -> EnvironmentFault | None:
        """Why the process ended; None while it lives."""
        ...

    def judged(self, key: InstanceKey) -> Mapping[str, JudgeUse]:
        """What an open instance has asked of judges so far, by name."""
        ...

    async def load(self, split: str) -> tuple[Task, ...]:
        """All tasks of a split, always in the same order."""
        ...

    async def open(
        self, key: InstanceKey, task: Task, seed: int, sandbox: SandboxPort | None
    ) -> None:
        """Make the instance of a try; `sandbox` None where the environment asks for none."""
        ...

    async def setup(self, key: InstanceKey) -> Json:
        """Run `setup`, return the first snapshot."""
        ...

    async def reply(
        self, key: InstanceKey, turn: int, message: Message, finish: Finish = "stop"
    ) -> Observation:
        """Answer an assistant message, once; the instance appends both sides to its history."""
        ...

    async def snapshot(self, key: InstanceKey) -> Json:
        """The instance's state."""
        ...

    async def restore(self, key: InstanceKey, state: Json, history: Sequence[Message]) -> None:
        """Take up a snapshot in a newly opened instance; `history` starts with the prompt."""
        ...

    async def close(self, key: InstanceKey) -> None:
        """Forget an instance; unknown ones too."""
        ...

    async def grade(
        self, rollouts: Sequence[Rollout], seed: int, grader: SandboxPort | None
    ) -> tuple[RolloutGrade, ...]:
        """Verdicts of one group, in the order given; a broken reward is unscorable, not a fault."""
        ...

    async def stop(self) -> None:
        """End the process; calls in flight fail with cause `stopped`."""
        ...
