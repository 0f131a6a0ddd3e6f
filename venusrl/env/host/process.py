"""An environment in its own sandboxed process: the adapter of `EnvironmentProcess` for packages.

Start it from the main thread: the process dies when the thread that started it ends. Sandbox calls
of user code come back here, are keyed (rollout, try, turn, ordinal) and handed to the instance's
port. An instance whose sandbox went away fails with `SandboxLost`, whatever user code made of it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from venusrl.env.host.answers import grades_of, info_of, observation_of
from venusrl.env.host.confinement import (
    Confinement,
    find_bubblewrap,
    plain_command,
    runner_command,
)
from venusrl.env.host.connection import CALL_GRACE_S, LogSink, RunnerConnection
from venusrl.env.host.judges import JudgePort, JudgeUse, JudgeUses, MeteredJudge, NoJudges
from venusrl.env.host.manifest import Manifest
from venusrl.env.host.ports import (
    GRADING_TURN,
    SETUP_TURN,
    EnvironmentFault,
    EnvironmentInfo,
    EnvironmentRaised,
    InstanceKey,
    Observation,
    ProtocolError,
    RolloutGrade,
    SandboxLost,
    SandboxPort,
)
from venusrl.env.messages import Finish, Json, Message, Rollout, Task
from venusrl.env.redaction import Redactor
from venusrl.env.rewards import REWARD_TIMEOUT_S_MAX, ComponentSpec
from venusrl.env.sandbox import CallKey, SandboxError, SandboxRequest
from venusrl.env.wire import (
    BadRecord,
    Record,
    as_record,
    int_field,
    message_to_json,
    request_from_json,
    result_to_json,
    rollout_to_json,
    task_from_json,
    task_to_json,
    text_field,
)

GRADE_ALONE_AT_ONCE: Final = 4
"""The runner's children at once; bounds how long a group of stuck rewards can take."""

OPEN_S: Final = 30.0
"""A constructor, and other calls that should take no time."""

ADAPTER_LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {"reasoning_gym": ("reasoning_gym",)}
"""Installed packages that an adapter's process may read."""

T = TypeVar("T")


@dataclass(slots=True)
class _Instance:
    """What the parent knows of an open instance: whose turn it is, and the next ordinal in it."""

    key: InstanceKey
    sandbox: SandboxPort | None
    turn: int | None = None
    ordinal: int = 0
    lost: str | None = None
    judges: JudgeUses = field(default_factory=dict)


@dataclass(slots=True)
class _Grade:
    port: SandboxPort | None
    ordinals: dict[str, itertools.count[int]]
    judges: dict[str, JudgeUses]


def discard_log(instance: str, text: str) -> None:
    """A log sink for callers who keep no logs."""


async def start_environment(
    package: Path,
    manifest: Manifest,
    config: Mapping[str, Json],
    log: LogSink = discard_log,
    *,
    judges: JudgePort | None = None,
    dependencies: Path | None = None,
    secrets: Mapping[str, str] | None = None,
) -> SandboxedEnvironment:
    """Start the process and import its entry class; the job's config goes over the package's.

    `secrets` are variables that user code finds in `os.environ`; their values are struck out of
    everything that it says for people.
    """
    limits = manifest.limits
    confinement = Confinement(
        package=package,
        memory_bytes=limits.memory_mb << 20,
        pids=limits.pids,
        libraries=ADAPTER_LIBRARIES.get(manifest.adapter or "", ()),
        dependencies=dependencies,
    )
    command = runner_command(find_bubblewrap(), confinement)
    serving = _Serving(log, judges or NoJudges(), secrets or {})
    return await _started(command, manifest, config, serving)


async def start_plain_environment(
    package: Path,
    manifest: Manifest,
    config: Mapping[str, Json],
    kit: Path,
    log: LogSink,
    *,
    judges: JudgePort | None = None,
    dependencies: Path | None = None,
    secrets: Mapping[str, str] | None = None,
) -> SandboxedEnvironment:
    """The same without isolation or limits: an author's own code on the author's own machine."""
    serving = _Serving(log, judges or NoJudges(), secrets or {})
    command = plain_command(package, kit, dependencies)
    return await _started(command, manifest, config, serving)


@dataclass(frozen=True, slots=True)
class _Serving:
    """What user code reaches outside of its process, beside sandboxes."""

    log: LogSink
    judges: JudgePort
    secrets: Mapping[str, str] = field(repr=False)


async def _started(
    command: Sequence[str], manifest: Manifest, config: Mapping[str, Json], serving: _Serving
) -> SandboxedEnvironment:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )
    environment = SandboxedEnvironment(process, manifest, serving)
    try:
        await environment.start(manifest.entry, {**manifest.config, **config}, serving.secrets)
    except BaseException:
        await environment.stop()
        raise
    return environment


class SandboxedEnvironment:
    """Implements `EnvironmentProcess` over one runner."""

    def __init__(
        self, process: asyncio.subprocess.Process, manifest: Manifest, serving: _Serving
    ) -> None:
        self._judge = MeteredJudge(serving.judges)
        self._redactor = Redactor(serving.secrets.values())
        limits = self._limits = manifest.limits
        self._may_rewrite = manifest.rewrites_history
        self._info = EnvironmentInfo()
        self._instances: dict[str, _Instance] = {}
        self._grades: dict[str, _Grade] = {}
        self._grade_names = itertools.count(1)
        self._connection = RunnerConnection(
            process, self._serve, serving.log, limits.blocked_s, redactor=self._redactor
        )

    @property
    def info(self) -> EnvironmentInfo:
        """See `EnvironmentProcess.info`."""
        return self._info

    @property
    def lag_s(self) -> float:
        """See `EnvironmentProcess.lag_s`."""
        return self._connection.lag_s

    @property
    def worst_lag_s(self) -> float:
        """The longest that user code held the loop so far."""
        return self._connection.worst_lag_s

    @property
    def judge_use(self) -> JudgeUse:
        """What its rewards and turns asked of judges so far."""
        return self._judge.use

    def judged(self, key: InstanceKey) -> Mapping[str, JudgeUse]:
        """See `EnvironmentProcess.judged`."""
        instance = self._instances.get(_name(key))
        return {} if instance is None else instance.judges

    @property
    def fault(self) -> EnvironmentFault | None:
        """See `EnvironmentProcess.fault`."""
        return self._connection.fault

    @property
    def pid(self) -> int:
        """The supervisor's process id; killing it ends the environment process."""
        return self._connection.pid

    async def start(
        self, entry: str, config: Mapping[str, Json], secrets: Mapping[str, str]
    ) -> None:
        """Import the entry class and learn what it declares."""
        params: Record = {"entry": entry, "config": config, "secrets": dict(secrets)}
        ok, _ = await self._call("start", params, self._limits.start_s, may_block=True)
        self._info = self._checked(lambda: info_of(as_record(ok, "the answer to start")))

    async def load(self, split: str) -> tuple[Task, ...]:
        """See `EnvironmentProcess.load`."""
        params = {"split": split}
        count, items = await self._call("load", params, self._limits.load_s, may_block=True)
        tasks = self._checked(lambda: tuple(task_from_json(item) for item in items))
        if count != len(tasks):
            raise self._broken(f"{len(tasks)} tasks came, {count} were said")
        return tasks

    async def open(
        self, key: InstanceKey, task: Task, seed: int, sandbox: SandboxPort | None
    ) -> None:
        """See `EnvironmentProcess.open`."""
        name = _name(key)
        assert name not in self._instances, f"instance {name} is already open"
        self._instances[name] = _Instance(key, sandbox)
        try:
            params: Record = {"instance": name, "task": task_to_json(task), "seed": seed}
            await self._call("open", params, OPEN_S)
        except BaseException:
            self._instances.pop(name, None)
            raise

    async def setup(self, key: InstanceKey) -> Json:
        """See `EnvironmentProcess.setup`."""
        return await self._turn(key, SETUP_TURN, "setup", {}, self._limits.setup_s)

    async def reply(
        self, key: InstanceKey, turn: int, message: Message, finish: Finish = "stop"
    ) -> Observation:
        """See `EnvironmentProcess.reply`."""
        params: Record = {"turn": turn, "message": message_to_json(message), "finish": finish}
        ok = await self._turn(key, turn, "reply", params, self._limits.reply_s)
        seen = self._checked(lambda: observation_of(as_record(ok, "the answer to reply")))
        if seen.is_rewrite and not self._may_rewrite:
            detail = "reply gave a new history; venus.toml must say rewrites_history = true"
            raise EnvironmentRaised("bad_reply", detail)
        return seen

    async def snapshot(self, key: InstanceKey) -> Json:
        """See `EnvironmentProcess.snapshot`."""
        return await self._turn(key, None, "snapshot", {}, self._limits.reply_s)

    async def restore(self, key: InstanceKey, state: Json, history: Sequence[Message]) -> None:
        """See `EnvironmentProcess.restore`."""
        params = {"state": state, "history": [message_to_json(one) for one in history]}
        await self._turn(key, None, "restore", params, self._limits.setup_s)

    async def close(self, key: InstanceKey) -> None:
        """See `EnvironmentProcess.close`."""
        if self._instances.pop(_name(key), None) is not None and self.fault is None:
            await self._call("close", {"instance": _name(key)}, OPEN_S)

    async def grade(
        self, rollouts: Sequence[Rollout], seed: int, grader: SandboxPort | None
    ) -> tuple[RolloutGrade, ...]:
        """See `EnvironmentProcess.grade`."""
        name = str(next(self._grade_names))
        judges: dict[str, JudgeUses] = {one.id: {} for one in rollouts}
        ordinals = {one.id: itertools.count() for one in rollouts}
        self._grades[name] = _Grade(grader, ordinals, judges)
        params: Record = {
            "grade": name,
            "seed": seed,
            "rollouts": [rollout_to_json(one) for one in rollouts],
        }
        try:
            limit_s = grade_limit_s(self._info.components, len(rollouts))
            ok, _ = await self._call("grade", params, limit_s)
        finally:
            del self._grades[name]
        answer = self._redactor.json(ok)
        return self._checked(lambda: grades_of(self._info, rollouts, answer, judges))

    async def stop(self) -> None:
        """See `EnvironmentProcess.stop`."""
        await self._connection.stop()

    async def _call(
        self, method: str, params: Record, limit_s: float, *, may_block: bool = False
    ) -> tuple[Json, list[Json]]:
        return await self._connection.call(method, params, limit_s, may_block=may_block)

    async def _turn(
        self, key: InstanceKey, turn: int | None, method: str, params: Record, limit_s: float
    ) -> Json:
        """A call during which the instance may use its sandbox as the given turn."""
        instance = self._instances.get(_name(key))
        if instance is None:
            # Closed between two calls, for instance by a release while it was being opened.
            raise EnvironmentRaised("unknown_instance", f"instance {_name(key)} is closed")
        instance.turn, instance.ordinal = turn, 0
        full = {**params, "instance": _name(key), "timeout_s": limit_s}
        try:
            ok, _ = await self._call(method, full, limit_s)
        except EnvironmentFault as fault:
            if instance.lost is not None and self.fault is None:
                raise SandboxLost("sandbox_lost", instance.lost) from fault
            raise
        finally:
            instance.turn = None
        if instance.lost is not None:
            raise SandboxLost("sandbox_lost", instance.lost)
        return ok

    async def _serve(self, frame: Record) -> Record:
        """A sandbox call or a question to a judge, answered as the port answers it."""
        if frame.get("t") == "judge":
            return await self._judge.serve(frame, self._judged(frame))
        request = request_from_json(frame.get("request"))
        if "grade" in frame:
            return await self._serve_grade(frame, request)
        instance = self._instances.get(text_field(frame, "instance"))
        turn, ordinal = int_field(frame, "turn"), int_field(frame, "ordinal")
        if instance is None or instance.turn != turn:
            return _refusal("denied", "the turn of this sandbox handle is over")
        if instance.ordinal != ordinal:
            raise BadRecord(f"sandbox call {ordinal} where {instance.ordinal} is next")
        instance.ordinal += 1
        key = CallKey(instance.key.rollout, instance.key.try_, turn, ordinal)
        try:
            return await _ask(instance.sandbox, key, request)
        except SandboxError as error:
            if error.reason in ("lost", "refused"):
                instance.lost = error.detail
            return _refusal(error.reason, error.detail)

    async def _serve_grade(self, frame: Record, request: SandboxRequest) -> Record:
        grade = self._grades.get(text_field(frame, "grade"))
        rollout = text_field(frame, "rollout")
        if grade is None or rollout not in grade.ordinals:
            return _refusal("denied", "this grade is over")
        key = CallKey(rollout, 0, GRADING_TURN, next(grade.ordinals[rollout]))
        try:
            return await _ask(grade.port, key, request)
        except SandboxError as error:
            return _refusal(error.reason, error.detail)

    def _judged(self, frame: Record) -> JudgeUses | None:
        """Where a question is counted; a group reward asks under its first member's name."""
        if "grade" in frame:
            grade = self._grades.get(text_field(frame, "grade"))
            return None if grade is None else grade.judges.get(text_field(frame, "rollout"))
        instance = self._instances.get(text_field(frame, "instance"))
        return None if instance is None else instance.judges

    def _checked(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except BadRecord as error:
            raise self._broken(str(error)) from error

    def _broken(self, detail: str) -> ProtocolError:
        """End the process for an answer that no runner gives."""
        fault = ProtocolError("bad_frame", self._redactor.text(detail))
        self._connection.fail(fault)
        return fault


def grade_limit_s(components: Sequence[ComponentSpec], size: int) -> float:
    """The longest that a group's grade can take: once together, then each component alone."""
    if not components:
        return CALL_GRACE_S
    jobs = sum(1 if spec.kind == "group_reward" else size for spec in components)
    rounds = 1 + math.ceil(jobs / GRADE_ALONE_AT_ONCE)
    longest = max(spec.timeout_s for spec in components) + CALL_GRACE_S
    return min(rounds * longest, 2 * REWARD_TIMEOUT_S_MAX)


def _name(key: InstanceKey) -> str:
    return f"{key.rollout}/{key.try_}"


async def _ask(port: SandboxPort | None, key: CallKey, request: SandboxRequest) -> Record:
    if port is None:
        raise SandboxError("denied", "this environment asked for no sandbox")
    return {"ok": result_to_json(await port.call(key, request))}


def _refusal(reason: str, detail: str) -> Record:
    return {"error": {"reason": reason, "detail": detail}}
