"""Runs the declared rewards of a group in forked children, so that no reward can end the process.

```
runner ---- fork ----> child: all components of the group, side by side, each with its timeout
   |  <-- done/sandbox/log frames over a socket pair
   +-- child died or is stuck: each unfinished component once more, alone in a child of its own
```
A component that fails alone too is unscorable: `timeout` or `grader_crashed`, never a zero. What
children say is checked again by the parent process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from venusrl.env._runner.channel import Channel, ChannelClosed
from venusrl.env._runner.faults import fault_of
from venusrl.env._runner.hidden import strike
from venusrl.env._runner.instances import make_environment
from venusrl.env._runner.logs import LogStream, current_instance
from venusrl.env._runner.remote_judge import RemoteJudge
from venusrl.env._runner.remote_sandbox import RemoteSandbox, grading_calls
from venusrl.env.environment import Environment
from venusrl.env.judge import JudgeUnavailable
from venusrl.env.messages import Json, Rollout
from venusrl.env.rewards import ComponentSpec
from venusrl.env.sandbox import Sandbox, SandboxError
from venusrl.env.values import Unscorable, Value, as_value
from venusrl.env.wire import int_field, list_field, value_from_json, value_to_json

KILL_GRACE_S: Final = 2.0
"""A child reports its own timeouts; one that is still silent this much later is stuck."""

CHILDREN_MAX: Final = 4
"""Children alive at once; the pids limit of the process must hold them and user code's own."""


SEEDS_PER_GROUP: Final = 1024
"""Above the largest group and one more, so that no two members of two groups share a stream."""


@dataclass(frozen=True, slots=True)
class Job:
    """One component of one rollout, or of the group where `rollout` is None."""

    spec: ComponentSpec
    rollout: int | None


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """What one grade call needs; `name` keys its sandbox calls at the parent."""

    name: str
    rollouts: tuple[Rollout, ...]
    seed: int


class Grader:
    """Grades groups; holds the bound on children of the whole process."""

    def __init__(
        self, channel: Channel, cls: type[Environment], config: Mapping[str, Json]
    ) -> None:
        self._channel = channel
        self._cls = cls
        self._config = config
        self._children = asyncio.Semaphore(CHILDREN_MAX)

    async def grade(self, request: GradeRequest) -> list[dict[str, Json]]:
        """Values of every component, one record a rollout in the order given."""
        jobs = _jobs(self._cls.components(), len(request.rollouts))
        values, _ = await self._run_child(request, dict(enumerate(jobs)))
        unfinished = {number: job for number, job in enumerate(jobs) if number not in values}
        alone = await asyncio.gather(
            *(self._run_alone(request, number, job) for number, job in unfinished.items())
        )
        for one in alone:
            values.update(one)
        return _by_rollout(jobs, values, len(request.rollouts))

    async def _run_alone(
        self, request: GradeRequest, number: int, job: Job
    ) -> dict[int, list[Value]]:
        values, is_stuck = await self._run_child(request, {number: job})
        if number in values:
            return values
        reason = "timeout" if is_stuck else "grader_crashed"
        verdict = Unscorable(reason, f"component {job.spec.name}")
        return {number: [verdict] * _width(job, request)}

    async def _run_child(
        self, request: GradeRequest, jobs: Mapping[int, Job]
    ) -> tuple[dict[int, list[Value]], bool]:
        """Run jobs in one child; jobs that it did not finish are missing from the answer.

        The flag says that it lived past its limit: how long it stood behind others does not count.
        """
        is_stuck = False
        if not jobs:
            return {}, is_stuck
        limit_s = max(job.spec.timeout_s for job in jobs.values()) + KILL_GRACE_S
        async with self._children:
            pid, ours = await _forked(partial(_child, self._cls, self._config, request, jobs))
            reader, writer = await asyncio.open_connection(sock=ours)
            values: dict[int, list[Value]] = {}
            try:
                async with asyncio.timeout(limit_s):
                    await self._relay(Channel(reader, writer), request, jobs, values)
            except TimeoutError:
                is_stuck = True
            except (ChannelClosed, ValueError):
                pass  # What is missing from `values` says it; the caller decides.
            finally:
                writer.close()
                await _kill_and_reap(pid)
            return values, is_stuck

    async def _relay(
        self,
        child: Channel,
        request: GradeRequest,
        jobs: Mapping[int, Job],
        values: dict[int, list[Value]],
    ) -> None:
        """Take values from a child and pass its sandbox calls and prints on, until it closes."""
        calls: set[asyncio.Task[None]] = set()
        try:
            async for frame in child.frames():
                kind = frame.get("t")
                if kind == "done":
                    self._keep(frame, request, jobs, values)
                elif kind in ("sandbox", "judge"):
                    calls.add(asyncio.create_task(self._pass_on(child, request, frame)))
                elif kind == "log":
                    await self._channel.send(frame)
                if len(values) == len(jobs):
                    break
        finally:
            for call in calls:
                call.cancel()

    def _keep(
        self,
        frame: Mapping[str, Json],
        request: GradeRequest,
        jobs: Mapping[int, Job],
        values: dict[int, list[Value]],
    ) -> None:
        number = int_field(frame, "job")
        found = [value_from_json(value) for value in list_field(frame, "values")]
        if number in jobs and len(found) == _width(jobs[number], request):
            values[number] = found

    async def _pass_on(
        self, child: Channel, request: GradeRequest, frame: Mapping[str, Json]
    ) -> None:
        answer = await self._channel.request({**frame, "grade": request.name})
        try:
            await child.send({**answer, "id": frame.get("id")})
        except ConnectionError:
            pass  # The child ended without waiting for this answer.


def _jobs(components: Sequence[ComponentSpec], size: int) -> list[Job]:
    jobs: list[Job] = []
    for spec in components:
        if spec.kind == "group_reward":
            jobs.append(Job(spec, None))
        else:
            jobs += [Job(spec, index) for index in range(size)]
    return jobs


def _width(job: Job, request: GradeRequest) -> int:
    return len(request.rollouts) if job.rollout is None else 1


def _by_rollout(
    jobs: Sequence[Job], values: Mapping[int, list[Value]], size: int
) -> list[dict[str, Json]]:
    records: list[dict[str, Json]] = [{} for _ in range(size)]
    for number, job in enumerate(jobs):
        for offset, value in enumerate(values[number]):
            index = offset if job.rollout is None else job.rollout
            records[index][job.spec.name] = value_to_json(value)
    return records


async def _forked(
    life: Callable[[socket.socket], Coroutine[Any, Any, None]],
) -> tuple[int, socket.socket]:
    """Fork a child that lives `life`; forks outside of any task, so the child inherits none."""
    loop = asyncio.get_running_loop()
    forked: asyncio.Future[int] = loop.create_future()
    ours, theirs = socket.socketpair()

    def fork() -> None:
        try:
            pid = os.fork()
        except OSError as error:
            forked.set_exception(error)
            return
        if pid == 0:
            ours.close()
            _child_main(life(theirs))
        forked.set_result(pid)

    loop.call_soon(fork)
    try:
        return await forked, ours
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


async def _kill_and_reap(pid: int) -> None:
    """End a child for good; waits for the kernel, not for user code."""
    pidfd = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(pidfd, lambda: None if gone.done() else gone.set_result(None))
        os.kill(pid, signal.SIGKILL)
        await gone
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        _reap(pid)


def _reap(pid: int) -> None:
    """Collect a child that is dead, or leave a dying one to the process's end."""
    os.waitpid(pid, os.WNOHANG)


def _child_main(life: Coroutine[Any, Any, None]) -> NoReturn:
    """A child's fresh event loop; exits without any clean-up that belongs to the runner."""
    code = 1
    try:
        asyncio.run(life)
        code = 0
    finally:
        os._exit(code)


async def _child(
    cls: type[Environment],
    config: Mapping[str, Json],
    request: GradeRequest,
    jobs: Mapping[int, Job],
    end: socket.socket,
) -> None:
    reader, writer = await asyncio.open_connection(sock=end)
    channel = Channel(reader, writer)
    log = LogStream(lambda: None, channel.try_send)
    sys.stdout = sys.stderr = log

    async def run(number: int, job: Job) -> None:
        values = await _run_job(cls, config, request, job, channel)
        for frame in log.take():
            await channel.send(frame)
        shown: list[Json] = [value_to_json(value) for value in values]
        await channel.send({"t": "done", "job": number, "values": shown})

    async def listen() -> None:
        async for _ in channel.frames():
            pass  # Only results of sandbox calls come this way; the channel resolves them.
        os._exit(1)  # The runner let go of this child: nobody waits for its values.

    listening = asyncio.create_task(listen())
    await asyncio.gather(*(run(number, job) for number, job in jobs.items()))
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    writer.close()
    await writer.wait_closed()


async def _run_job(
    cls: type[Environment],
    config: Mapping[str, Json],
    request: GradeRequest,
    job: Job,
    channel: Channel,
) -> list[Value]:
    """One component's values; whatever user code does short of dying gives one each."""
    subject = request.rollouts[job.rollout or 0]
    width = _width(job, request)
    current_instance.set(subject.id)
    judge = RemoteJudge(channel, {"grade": request.name, "rollout": subject.id})
    try:
        async with asyncio.timeout(job.spec.timeout_s):
            environment = make_environment(cls, config, _seed(request, job), (subject.task, judge))
            if subject.state is not None:
                await environment.restore(subject.state)
            function = getattr(environment, job.spec.name)
            given = request.rollouts if job.rollout is None else subject
            sandbox = RemoteSandbox(grading_calls(channel, request.name, subject.id))
            raw = function(given, **_grader_argument(function, sandbox))
            raw = await raw if inspect.isawaitable(raw) else raw
    except Unscorable as verdict:
        return [_value(verdict)] * width
    except TimeoutError:
        return [Unscorable("timeout", f"component {job.spec.name}")] * width
    except JudgeUnavailable as error:
        return [_judged(error)] * width
    except SandboxError as error:
        return [Unscorable("grader_lost", str(error))] * width
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - edge of user code
        return [_value(Unscorable("raised", fault_of(error, job.spec.name).detail))] * width
    if judge.failure is not None:
        return [
            _judged(judge.failure)
        ] * width  # Code that swallowed it has graded without a judge.
    if job.rollout is not None:
        return [_value(raw)]
    if isinstance(raw, str) or not isinstance(raw, Sequence) or len(raw) != width:
        return [Unscorable("bad_length", f"{job.spec.name} must give {width} values")] * width
    return [_value(one) for one in raw]


def _value(raw: object) -> Value:
    """What a component gave; its words are struck before they are cut."""
    if isinstance(raw, Unscorable):
        return as_value(Unscorable(strike(str(raw.reason)), strike(str(raw.detail))))
    return as_value(raw)


def _judged(error: JudgeUnavailable) -> Value:
    return _value(Unscorable(f"judge_{error.reason}", error.detail))


def _seed(request: GradeRequest, job: Job) -> int:
    """Each member draws from a stream of its own, as its rollout did; the group from another."""
    place = 0 if job.rollout is None else 1 + request.rollouts[job.rollout].index
    return request.seed * SEEDS_PER_GROUP + place


def _grader_argument(function: Callable[..., Any], sandbox: Sandbox) -> dict[str, Sandbox]:
    """The sandbox under the name of the parameter that asks for one, if any does."""
    hints = typing.get_type_hints(function)
    return {name: sandbox for name, hint in hints.items() if hint is Sandbox and name != "return"}
