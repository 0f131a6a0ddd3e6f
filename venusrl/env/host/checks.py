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
from venusrl.env.host.episode import Played, Sandboxes, Spoken, Stage, grade_group, play
from venusrl.env.host.manifest import (
    MANIFEST_NAME,
    Finding,
    Manifest,
    PackageInvalid,
    read_manifest,
)
from venusrl.env.host.ports import (
    EnvironmentFault,
    EnvironmentInfo,
    EnvironmentProcess,
    InstanceKey,
    RolloutGrade,
)
from venusrl.env.messages import Json, Message, Rollout, Task
from venusrl.env.values import Unscorable, Value

SPLITS: Final = ("train", "test")
"""The splits that a job can use."""

CASES_AT_ONCE: Final = 8
"""Sandboxes in use by one validation."""

VALUE_TOLERANCE: Final = 1e-9
"""An expected value written in decimal equals the float that a reward computes."""

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
    *,
    given: Collection[str] = (),
) -> CheckReport:
    """Validate an unpacked package; without `sandboxes` cases that need one wait.

    `given` are the variables of secrets that `start` gives it.
    """
    try:
        manifest = read_manifest(folder)
    except PackageInvalid as error:
        return CheckReport(error.findings)
    code = check_code(folder)
    findings = [*_unsupported(folder, manifest), *_not_given(manifest, given), *code]
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


def _unsupported(folder: Path, manifest: Manifest) -> list[Finding]:
    """What a package asks for and would not get: refused, so that nothing is silently left out."""
    findings: list[Finding] = []
    requirements = folder / "requirements.txt"
    if requirements.is_file() and requirements.read_text(errors="replace").strip():
        hint = "use the standard library, or files of the package"
        findings.append(Finding(requirements.name, "", "requirements are not installed", hint))
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


async def _play(subject: _Subject, case: Case, task: Task, key: InstanceKey) -> list[Finding]:
    """Play one case to its end, grade it, and compare."""

    async def speak(messages: Sequence[Message], turn: int) -> Spoken | str:
        if turn >= len(case.turns):
            return "turn_limit"
        scripted = case.turns[turn]
        return Spoken(scripted.message(task), scripted.finish)

    try:
        played = await play(subject.stage, key, task, speak)
        grade = await _grade(subject.stage, played.rollout)
    except EnvironmentFault as fault:
        return [case.finding("", str(fault))]
    findings = _replies(case, played)
    end = played.rollout.end
    if case.end is not None and end != case.end:
        findings.append(case.finding("/expect/end", f"ended {end}, not {case.end}"))
    return findings + _compare(case, grade)


async def _grade(stage: Stage, rollout: Rollout) -> RolloutGrade:
    (grade,) = await grade_group(stage, [rollout], 0)
    return grade


def _replies(case: Case, played: Played) -> list[Finding]:
    """Findings where the environment answered otherwise than the script expects."""
    findings = []
    for number, (turn, reply) in enumerate(zip(case.turns, played.replies, strict=False)):
        said = tuple(one.content for one in reply or ())
        if turn.replies is not None and said != turn.replies:
            detail = f"the environment answered {list(said)!r:.300}"
            findings.append(case.finding(f"/turns/{number}/replies", detail))
    return findings


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
