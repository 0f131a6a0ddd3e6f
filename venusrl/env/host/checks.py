"""Validation of an environment version: does it start, load, play its cases, and score them right.

Everything of the package runs in its environment process. What is wrong comes back as findings with
file and pointer; the package is usable when none of them is an error.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from venusrl.env.host.cases import Case, read_cases
from venusrl.env.host.code import check_code
from venusrl.env.host.episode import Sandboxes, Stage
from venusrl.env.host.manifest import (
    MANIFEST_NAME,
    Finding,
    Manifest,
    PackageInvalid,
    read_manifest,
)
from venusrl.env.host.playing import play_case
from venusrl.env.host.ports import (
    EnvironmentFault,
    EnvironmentInfo,
    EnvironmentProcess,
    InstanceKey,
)
from venusrl.env.host.requirements import read_requirements, requirement_finding
from venusrl.env.messages import Task

SPLITS: Final = ("train", "test")
"""The splits that a job can use."""

CASES_AT_ONCE: Final = 8
"""Sandboxes in use by one validation."""

Start = Callable[[Path, Manifest], Awaitable[EnvironmentProcess]]
"""Starts the environment process of an unpacked package. Raises EnvironmentFault."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a validation found. `tasks` counts by split; `cases` counts those that were played."""

    findings: tuple[Finding, ...]
    manifest: Manifest | None = None
    info: EnvironmentInfo = field(default_factory=EnvironmentInfo)
    tasks: Mapping[str, int] = field(default_factory=dict)
    cases: int = 0

    @property
    def passed(self) -> bool:
        """Whether the version may be used."""
        return all(finding.severity != "error" for finding in self.findings)


async def check_folder(
    folder: Path,
    start: Start,
    sandboxes: Sandboxes | None = None,
    dependencies: Path | None = None,
    *,
    given: Collection[str] = (),
) -> CheckReport:
    """Validate an unpacked package; without `sandboxes` cases that need one wait.

    `dependencies` is the folder that its requirements were built into; `start` brings them along.
    `given` are the variables of secrets that `start` gives it.
    """
    try:
        manifest = read_manifest(folder)
    except PackageInvalid as error:
        return CheckReport(error.findings)
    code = check_code(folder, dependencies)
    findings = [
        *_unbuilt(folder, dependencies),
        *_unsupported(manifest),
        *_not_given(manifest, given),
        *code,
    ]
    if any(one.severity == "error" for one in code):
        return CheckReport(tuple(findings), manifest)
    try:
        process = await start(folder, manifest)
    except EnvironmentFault as fault:
        file = f"{manifest.entry.partition(':')[0].replace('.', '/')}.py"
        findings.append(Finding(file, "", str(fault)))
        return CheckReport(tuple(findings), manifest)
    try:
        return await _check_running(_Subject(folder, Stage(process, manifest, sandboxes)), findings)
    finally:
        await process.stop()


@dataclass(frozen=True, slots=True)
class _Subject:
    folder: Path
    stage: Stage

    @property
    def process(self) -> EnvironmentProcess:
        """The running environment."""
        return self.stage.process

    @property
    def manifest(self) -> Manifest:
        """What the package says of itself."""
        return self.stage.manifest


async def _check_running(subject: _Subject, findings: list[Finding]) -> CheckReport:
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
    return CheckReport(tuple(findings), subject.manifest, info, counts, played)


def _unbuilt(folder: Path, dependencies: Path | None) -> list[Finding]:
    requirements = read_requirements(folder)
    if dependencies is None and requirements.pins:
        unbuilt = requirement_finding(0, "requirements_not_built", "requirements are not built")
        return [*requirements.findings, unbuilt]
    return list(requirements.findings)


def _unsupported(manifest: Manifest) -> list[Finding]:
    """What a package asks for and would not get: refused, so that nothing is silently left out."""
    findings: list[Finding] = []
    if manifest.network_allow:
        findings.append(Finding("venus.toml", "/network/allow", "environments have no network"))
    return findings


def _not_given(manifest: Manifest, given: Collection[str]) -> list[Finding]:
    """Variables that are missing here; a job that leaves one out is refused, a check goes on."""
    return [
        Finding(
            MANIFEST_NAME,
            f"/secrets/{number}",
            f"the variable {variable} is not set here",
            "export it for `venus env`; on the platform, store a secret of that name",
            "warning",
        )
        for number, variable in enumerate(manifest.secrets)
        if variable not in given
    ]


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
    train, test = (
        {(task.prompt, tuple(sorted(task.files.items()))) for task in tasks[split]}
        for split in SPLITS
    )
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
    needs_sandbox = subject.manifest.sandbox or subject.manifest.grading_sandbox
    if cases and needs_sandbox and subject.stage.sandboxes is None:
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
            key = InstanceKey(f"case-{next(numbers)}", 1)
            return list((await play_case(subject.stage, case, task, key)).findings)

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
