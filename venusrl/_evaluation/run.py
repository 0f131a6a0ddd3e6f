"""Runs k rollouts of each task and counts: what was scored, what was not and why."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from venusrl._evaluation.policies import ContextFull, Policy, PolicyFailed
from venusrl._evaluation.statistics import Interval, clustered, pass_at_k
from venusrl.env.host.episode import Played, Spoken, Stage, grade_group, play
from venusrl.env.host.ports import EnvironmentFault, InstanceKey, RolloutGrade
from venusrl.env.messages import Message, Task
from venusrl.env.values import Unscorable

TOLERANCE: Final = 1e-9
"""A total that equals the pass mark up to rounding passes."""


class EvaluationStopped(Exception):
    """No rollout can be had: the model, or the environment's process, is out of reach for good."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Options:
    """What is run. `pass_mark` None: the sum of all positive weights."""

    k: int
    tasks: int | None = None
    seed: int = 0
    at_once: int = 8
    pass_mark: float | None = None


@dataclass(slots=True)
class Attempted:
    """One rollout: how it went, its verdict if there is one, or why it was no rollout at all."""

    task: str
    played: Played | None = None
    grade: RolloutGrade | None = None
    failure: str | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    is_counted: bool = True

    @property
    def total(self) -> float | None:
        """The score, None for an unscorable or failed rollout."""
        total = None if self.grade is None else self.grade.total
        return None if isinstance(total, Unscorable) else total


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of an evaluation; shares are of tasks all of whose k rollouts were scored."""

    tasks: int
    rollouts: int
    scored: int
    reward: Interval | None
    pass_mark: float
    pass_at: dict[int, float]
    whole_tasks: int
    share_none: float | None
    share_all: float | None
    prompt_tokens: int | None
    sampled_tokens: int | None
    tool_s: float
    ends: dict[str, int]
    unscorable: dict[str, int]
    failed: dict[str, int]
    components: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    judge: dict[str, int] = field(default_factory=dict)

    @property
    def truncated(self) -> int:
        """Rollouts that a limit of tokens or context ended."""
        return self.ends.get("truncated", 0) + self.ends.get("context_overflow", 0)


def chosen(tasks: Sequence[Task], options: Options) -> list[Task]:
    """The tasks of this evaluation: all, or a seeded sample in the order of the split."""
    if options.tasks is None or options.tasks >= len(tasks):
        return list(tasks)
    numbers = Random(options.seed).sample(range(len(tasks)), options.tasks)
    return [tasks[number] for number in sorted(numbers)]


async def evaluate(stage: Stage, tasks: Sequence[Task], policy: Policy, options: Options) -> Report:
    """Run and grade everything. Raises EvaluationStopped."""
    slots = asyncio.Semaphore(options.at_once)
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_task(stage, task, policy, (number, options, slots)))
                for number, task in enumerate(tasks)
            ]
    except* EvaluationStopped as stopped:
        raise _first(stopped) from None
    rollouts = [one.result() for one in running]
    if rollouts and all(one.failure is not None for group_ in rollouts for one in group_):
        failure = rollouts[0][0].failure or ""
        code = failure.partition(":")[0]
        raise EvaluationStopped(code, f"no rollout came to its end: {failure}")
    return report(stage, rollouts, options)


def _first(stopped: BaseExceptionGroup[EvaluationStopped]) -> EvaluationStopped:
    first = stopped.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _task(
    stage: Stage, task: Task, policy: Policy, run: tuple[int, Options, asyncio.Semaphore]
) -> list[Attempted]:
    number, options, slots = run

    async def one(index: int) -> Attempted:
        async with slots:
            key = InstanceKey(f"eval-{number}-{index}", 1)
            return await _rollout(stage, task, policy, (key, index, options.seed))

    found = await asyncio.gather(*(one(index) for index in range(options.k)))
    played = [one_.played.rollout for one_ in found if one_.played is not None]
    if played:
        async with slots:
            try:
                grades = await grade_group(stage, played, options.seed)
            except EnvironmentFault as fault:
                raise EvaluationStopped(fault.cause, f"grading: {fault.detail}") from fault
        by_id = {grade.rollout: grade for grade in grades}
        for one_ in found:
            if one_.played is not None:
                one_.grade = by_id[one_.played.rollout.id]
    return found


async def _rollout(
    stage: Stage, task: Task, policy: Policy, run: tuple[InstanceKey, int, int]
) -> Attempted:
    key, index, seed = run
    attempted = Attempted(task.id)
    draw = Random(f"{seed}:{key.rollout}").randrange(2**31)

    async def speak(messages: Sequence[Message], turn: int) -> Spoken | str:
        try:
            reply = await policy.answer(messages, stage.process.info.tools, draw + turn)
        except ContextFull:
            return "context_overflow"
        attempted.is_counted &= reply.sampled_tokens is not None
        attempted.prompt_tokens += reply.prompt_tokens or 0
        attempted.sampled_tokens += reply.sampled_tokens or 0
        if reply.is_cut:
            return Spoken(reply.message, "length", "truncated")
        return Spoken(reply.message)

    try:
        attempted.played = await play(stage, key, task, speak, index=index, seed=draw)
    except PolicyFailed as failed:
        if failed.is_fatal:
            raise EvaluationStopped(failed.reason, failed.detail) from failed
        attempted.failure = str(failed)
    except EnvironmentFault as fault:
        if stage.process.fault is not None:
            raise EvaluationStopped(fault.cause, fault.detail) from fault
        attempted.failure = str(fault)
    return attempted


def report(stage: Stage, groups: Sequence[Sequence[Attempted]], options: Options) -> Report:
    """Count everything once."""
    weights = stage.process.info.weights
    full = stage.process.info.full_marks
    mark = full if options.pass_mark is None else options.pass_mark
    scores = [[one.total for one in group if one.total is not None] for group in groups]
    passes = [sum(total >= mark - TOLERANCE for total in group) for group in scores]
    whole = [c for c, group in zip(passes, scores, strict=True) if len(group) == options.k]
    flat = [one for group in groups for one in group]
    played = [one.played for one in flat if one.played is not None]
    is_counted = all(one.is_counted for one in flat)
    return Report(
        tasks=len(groups),
        rollouts=len(flat),
        scored=sum(map(len, scores)),
        reward=clustered(scores),
        pass_mark=mark,
        pass_at=_pass_at(scores, passes, options.k),
        whole_tasks=len(whole),
        share_none=sum(c == 0 for c in whole) / len(whole) if whole else None,
        share_all=sum(c == options.k for c in whole) / len(whole) if whole else None,
        prompt_tokens=sum(one.prompt_tokens for one in flat) if is_counted else None,
        sampled_tokens=sum(one.sampled_tokens for one in flat) if is_counted else None,
        tool_s=math.fsum(one.tool_s for one in played),
        ends=dict(Counter(one.rollout.end for one in played)),
        unscorable=_reasons(flat),
        failed=dict(Counter((one.failure or "").partition(":")[0] for one in flat if one.failure)),
        components=_means(flat, list(weights)),
        metrics=_metric_means(flat),
    )


def _pass_at(scores: Sequence[Sequence[float]], passes: Sequence[int], k: int) -> dict[int, float]:
    """Mean over the tasks that have enough scored rollouts, for powers of two and k itself."""
    found = {}
    for wanted in sorted({2**power for power in range(k.bit_length()) if 2**power <= k} | {k}):
        values = [
            pass_at_k(len(group), c, wanted)
            for group, c in zip(scores, passes, strict=True)
            if len(group) >= wanted
        ]
        if values:
            found[wanted] = math.fsum(values) / len(values)
    return found


def _reasons(flat: Sequence[Attempted]) -> dict[str, int]:
    totals = [one.grade.total for one in flat if one.grade is not None]
    return dict(Counter(total.reason for total in totals if isinstance(total, Unscorable)))


def _means(flat: Sequence[Attempted], names: Sequence[str]) -> dict[str, float]:
    means = {}
    for name in names:
        values = [one.grade.components[name] for one in flat if one.grade is not None]
        numbers = [value for value in values if isinstance(value, float)]
        if numbers:
            means[name] = math.fsum(numbers) / len(numbers)
    return means


def _metric_means(flat: Sequence[Attempted]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for one in flat:
        for name, value in (one.grade.metrics if one.grade is not None else {}).items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}
