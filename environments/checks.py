"""Validation of an environment version: does it start, load, play its cases, and score them right.

Everything of the package runs in its environment process. What is wrong comes back as findings with
file and pointer; the package is usable when none of them is an error.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from environments.cases import Case, read_cases
from environments.manifest import Finding, Manifest, PackageInvalid
from environments.package import content_hash, read_manifest
from environments.ports import (
    EnvironmentFault,
    EnvironmentInfo,
    EnvironmentProcess,
    InstanceKey,
    RolloutGrade,
    SandboxPort,
)
from environments.process import start_environment
from venusrl.env.messages import Json, Message, Rollout, Task
from venusrl.env.values import Unscorable, Value

SPLITS: Final = ("train", "test")
"""The splits that a job can use."""

CASES_AT_ONCE: Final = 8
"""Sandboxes in use by one validation."""

VALUE_TOLERANCE: Final = 1e-9
"""An expected value written in decimal equals the float that a reward computes."""

SandboxFactory = Callable[[InstanceKey], AbstractAsyncContextManager[SandboxPort]]
"""Gives one fresh sandbox for one case, and takes it back."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a validation found. `tasks` counts by split; `cases` counts those that were played."""

    findings: tuple[Finding, ...]
    manifest: Manifest | None = None
    content: str = ""
    info: EnvironmentInfo = field(default_factory=EnvironmentInfo)
    tasks: Mapping[str, int] = field(default_factory=dict)
    cases: int = 0

    @property
    def passed(self) -> bool:
        """Whether the version may be used."""
        return all(finding.severity != "error" for finding in self.findings)


async def check_package(
    folder: Path, config: Mapping[str, Json], sandboxes: SandboxFactory | None = None
) -> CheckReport:
    """Validate an unpacked package under a config; without `sandboxes` cases that need one wait."""
    try:
        manifest = read_manifest(folder)
        digest = content_hash(folder)
    except PackageInvalid as error:
        return CheckReport(error.findings)
    findings = _unsupported(folder, manifest)
    try:
        process = await start_environment(folder, manifest, config)
    except EnvironmentFault as fault:
        file = f"{manifest.entry.partition(':')[0].replace('.', '/')}.py"
        findings.append(Finding(file, "", str(fault)))
        return CheckReport(tuple(findings), manifest, digest)
    try:
        return await _check_running(
            _Subject(folder, manifest, process, sandboxes), digest, findings
        )
    finally:
        await process.stop()


@dataclass(frozen=True, slots=True)
class _Subject:
    folder: Path
    manifest: Manifest
    process: EnvironmentProcess
    sandboxes: SandboxFactory | None


async def _check_running(subject: _Subject, digest: str, findings: list[Finding]) -> CheckReport:
    info = subject.process.info
    if not any(info.weights.values()):
        hint = "mark a method with @reward"
        findings.append(Finding("", "", "no component has a weight: every rollout scores 0", hint))
    tasks: dict[str, tuple[Task, ...]] = {}
    for split in SPLITS:
        tasks[split] = await _load(subject.process, split, findings)
    findings += _overlap(tasks)
    cases, unreadable = read_cases(subject.folder)
    findings += unreadable
    played = await _play_all(subject, tasks, cases, findings)
    counts = {split: len(found) for split, found in tasks.items()}
    return CheckReport(tuple(findings), subject.manifest, digest, info, counts, played)


def _unsupported(folder: Path, manifest: Manifest) -> list[Finding]:
    """What a package asks for and would not get: refused, so that nothing is silently left out."""
    findings: list[Finding] = []
    requirements = folder / "requirements.txt"
    if requirements.is_file() and requirements.read_text(errors="replace").strip():
        hint = "use the standard library, or files of the package"
        findings.append(Finding(requirements.name, "", "requirements are not installed", hint))
    if manifest.secrets:
        findings.append(Finding("venus.toml", "/secrets", "secrets are not served"))
    if manifest.network_allow:
        findings.append(Finding("venus.toml", "/network/allow", "environments have no network"))
    return findings


async def _load(
    process: EnvironmentProcess, split: str, findings: list[Finding]
) -> tuple[Task, ...]:
    file = f"tasks/{split}.jsonl"
    try:
        tasks = await process.load(split)
        again = await process.load(split)
    except EnvironmentFault as fault:
        findings.append(Finding(file, "", str(fault)))
        return ()
    if tasks != again:
        hint = "seed every generator from the config"
        findings.append(Finding(file, "", f"split {split} loads differently each time", hint))
    if not tasks:
        findings.append(Finding(file, "", f"split {split} has no tasks"))
    for number, task in enumerate(tasks, start=1):
        if not any(message.content.strip() for message in task.prompt):
            findings.append(Finding(file, f"/{number}", f"task {task.id} has an empty prompt"))
    return tasks


def _overlap(tasks: Mapping[str, Sequence[Task]]) -> list[Finding]:
    train, test = ({task.prompt for task in tasks[split]} for split in SPLITS)
    shared = len(train & test)
    if not shared:
        return []
    message = f"{shared} prompts stand in both splits: the held-out score would flatter"
    return [Finding("tasks/test.jsonl", "", message, severity="warning")]


async def _play_all(
    subject: _Subject,
    tasks: Mapping[str, Sequence[Task]],
    cases: Sequence[Case],
    findings: list[Finding],
) -> int:
    if cases and subject.manifest.sandbox and subject.sandboxes is None:
        message = "cases were not played: no sandbox is at hand"
        findings.append(Finding("cases", "", message, severity="warning"))
        return 0
    by_id = {(split, task.id): task for split, found in tasks.items() for task in found}
    slots = asyncio.Semaphore(CASES_AT_ONCE)
    numbers = itertools.count()

    async def play(case: Case) -> list[Finding]:
        async with slots:
            task = by_id.get((case.split, case.task))
            if task is None:
                return [case.finding("/task", f"split {case.split} has no task {case.task}")]
            return await _play(subject, case, task, InstanceKey(f"case-{next(numbers)}", 1))

    for found in await asyncio.gather(*(play(case) for case in cases)):
        findings += found
    findings += _coverage(subject.process.info, cases)
    return len(cases)


def _coverage(info: EnvironmentInfo, cases: Sequence[Case]) -> list[Finding]:
    """A warning where no case shows the full score, or none the zero."""
    full = sum(weight for weight in info.weights.values() if weight > 0)
    totals = [case.expected.get("total") for case in cases]
    missing = [
        what
        for what, wanted in (("full score", full), ("zero", 0.0))
        if not any(isinstance(total, (int, float)) and total == wanted for total in totals)
    ]
    message = f"no case expects {' or '.join(missing)}"
    return [Finding("cases", "", message, severity="warning")] if missing else []


@asynccontextmanager
async def _sandbox(subject: _Subject, key: InstanceKey) -> AsyncIterator[SandboxPort | None]:
    if not subject.manifest.sandbox or subject.sandboxes is None:
        yield None
        return
    async with subject.sandboxes(key) as port:
        yield port


async def _play(subject: _Subject, case: Case, task: Task, key: InstanceKey) -> list[Finding]:
    """Play one case to its end, grade it, and compare."""
    process = subject.process
    try:
        async with _sandbox(subject, key) as port:
            await process.open(key, task, 0, port)
            await process.setup(key)
            rollout, findings = await _turns(subject, case, task, key)
            await process.close(key)
        (grade,) = await process.grade([rollout], 0, None)
    except EnvironmentFault as fault:
        return [case.finding("", str(fault))]
    if case.end is not None and rollout.end != case.end:
        findings.append(case.finding("/expect/end", f"ended {rollout.end}, not {case.end}"))
    return findings + _compare(case, grade)


async def _turns(
    subject: _Subject, case: Case, task: Task, key: InstanceKey
) -> tuple[Rollout, list[Finding]]:
    messages: list[Message] = list(task.prompt)
    findings: list[Finding] = []
    state: Json = None
    end = "turn_limit"
    for number, turn in enumerate(case.turns[: subject.manifest.limits.max_turns]):
        message = turn.message(task.answer)
        seen = await subject.process.reply(key, number, message, turn.finish)
        messages += [message, *(seen.messages or ())]
        state = seen.state
        said = tuple(one.content for one in seen.messages or ())
        if turn.replies is not None and said != turn.replies:
            detail = f"the environment answered {list(said)!r:.300}"
            findings.append(case.finding(f"/turns/{number}/replies", detail))
        if seen.messages is None:
            end = "done"
            break
    rollout = Rollout(key.rollout, 0, task, tuple(messages), end, number + 1, state)
    return rollout, findings


def _compare(case: Case, grade: RolloutGrade) -> list[Finding]:
    found: dict[str, Value] = {**grade.components, "total": grade.total}
    findings = []
    for name, expected in case.expected.items():
        pointer = "/expect/total" if name == "total" else f"/expect/components/{name}"
        if name not in found:
            findings.append(case.finding(pointer, f"there is no component {name}"))
        elif not _agrees(found[name], expected):
            findings.append(case.finding(pointer, f"is {found[name]}, not {expected}"))
    return findings


def _agrees(value: Value, expected: Json) -> bool:
    if isinstance(expected, Mapping):
        return isinstance(value, Unscorable) and value.reason == expected.get("unscorable")
    if isinstance(value, Unscorable) or not isinstance(expected, (int, float)):
        return False
    return abs(value - expected) <= VALUE_TOLERANCE
