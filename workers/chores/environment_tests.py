"""A test run: plays some of a split through an environment and reports every verdict.

The version does not change. A run that takes too long ends with what it has.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from infra.codec import convert
from infra.logging import striking
from sandboxes.runtimes.process import ProcessRuntime
from stores.system.operations import TakenOperation
from venusrl.env.host.cases import read_cases
from venusrl.env.host.episode import Stage
from venusrl.env.host.manifest import Finding, PackageInvalid, read_manifest
from venusrl.env.host.playing import Outcome
from venusrl.env.host.ports import EnvironmentFault, InstanceKey
from venusrl.env.host.process import start_environment
from venusrl.env.messages import Task
from venusrl.env.redaction import Redactor
from venusrl.env.values import Unscorable
from workers.chores.case_sandboxes import CaseSandboxes
from workers.chores.environment_players import CasePlayer, ModelPlayer, Player, loaded
from workers.chores.environments import built, built_folder, fetched, project_secrets
from workers.chores.generate import GenerateRequest, saved_checkpoint
from workers.chores.handling import ChoreFailed, ChoreTools, finding_json, storable

PLAY_S: Final = 200.0
"""Of all rollouts together; the rest of a chore's time is for the build and the start."""

LOG_CHARS_MAX: Final = 8000
"""The end of what the environment printed; a rollout's own log holds the whole."""


@dataclass(frozen=True, slots=True)
class TestRequest:
    """What the operation's row asks for."""

    environment_version_id: str
    split: str
    tasks: int
    checkpoint: str | None = None
    temperature: float = 1.0
    max_tokens: int = 128
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """The end of a log."""

    lines: deque[str] = field(default_factory=deque)
    chars: int = 0

    def __call__(self, instance: str, text: str) -> None:
        """Take one piece; the oldest ones go."""
        self.lines.append(text[-LOG_CHARS_MAX:].removesuffix("\n") + "\n")
        self.chars += len(self.lines[-1])
        while self.chars > LOG_CHARS_MAX:
            self.chars -= len(self.lines.popleft())

    @property
    def text(self) -> str:
        """What is left, as it can be stored."""
        return storable("".join(self.lines))


async def test(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Play and report. Raises ChoreFailed."""
    try:
        request = convert(dict(operation.request), TestRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    log = Log()
    with tempfile.TemporaryDirectory(prefix="venus-test-") as folder:
        target = await fetched(tools, request.environment_version_id, Path(folder))
        try:
            await built(tools, target)
            async with _staged(tools, target, request, log) as stage:
                tasks = await stage.process.load(request.split)
                return await _run(tools, operation, (request, stage, target, tasks), log)
        except PackageInvalid as error:
            return _report(request, [], error.findings, log)
        except EnvironmentFault as fault:
            finding = Finding("", "", str(fault), code=fault.cause)
            return _report(request, [], [finding], log)


@asynccontextmanager
async def _staged(
    tools: ChoreTools, target: Path, request: TestRequest, log: Log
) -> AsyncIterator[Stage]:
    dependencies = await built_folder(tools, target)
    manifest = read_manifest(target)
    secrets = await project_secrets(tools, request.environment_version_id, target)
    with striking(Redactor(secrets.values()).text):
        process = await start_environment(
            target, manifest, request.config, log, dependencies=dependencies, secrets=secrets
        )
        try:
            runtime = ProcessRuntime(target.parent / "guest")
            try:
                yield Stage(process, manifest, CaseSandboxes(runtime, target))
            finally:
                await runtime.close()
        finally:
            await process.stop()


async def _run(
    tools: ChoreTools,
    operation: TakenOperation,
    asked: tuple[TestRequest, Stage, Path, Sequence[Task]],
    log: Log,
) -> Mapping[str, object]:
    request, stage, target, tasks = asked
    if request.checkpoint is None:
        players, findings = _cases(target, request, tasks)
        played, late = await _play_all(stage, players)
        return _report(request, played, [*findings, *late], log)
    if not tasks:
        return _report(request, [], [_nothing(request, "task")], log)
    saved = await saved_checkpoint(tools, operation, request.checkpoint)
    wanted = GenerateRequest(
        request.checkpoint,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=request.seed,
    )
    async with loaded(saved) as model:
        chosen = [ModelPlayer(model, wanted, task) for task in tasks[: request.tasks]]
        played, late = await _play_all(stage, chosen)
    return _report(request, played, late, log)


def _cases(
    target: Path, request: TestRequest, tasks: Sequence[Task]
) -> tuple[list[Player], list[Finding]]:
    cases, findings = read_cases(target)
    by_id = {task.id: task for task in tasks}
    meant = [case for case in cases if case.split == request.split]
    players: list[Player] = []
    for case in meant[: request.tasks]:
        if (task := by_id.get(case.task)) is not None:
            players.append(CasePlayer(case, task))
        else:
            findings.append(case.finding("/task", f"split {case.split} has no task {case.task}"))
    if not meant:
        findings.append(_nothing(request, "case"))
    return players, findings


def _nothing(request: TestRequest, what: str) -> Finding:
    message = f"split {request.split} has no {what}: nothing was played"
    return Finding("", "", message, code=f"no_{what}s")


async def _play_all(
    stage: Stage, players: Sequence[Player]
) -> tuple[list[tuple[Player, Outcome]], list[Finding]]:
    """One after the other; a finding where the time was up."""
    played: list[tuple[Player, Outcome]] = []
    try:
        async with asyncio.timeout(PLAY_S):
            for number, player in enumerate(players):
                played.append((player, await player.play(stage, InstanceKey(f"test-{number}", 1))))
    except TimeoutError:
        message = f"{len(played)} of {len(players)} were played within {PLAY_S:g} s"
        return played, [Finding("", "", message, "ask for fewer", code="test_run_timeout")]
    return played, []


def _report(
    request: TestRequest,
    played: Sequence[tuple[Player, Outcome]],
    findings: Sequence[Finding],
    log: Log,
) -> dict[str, object]:
    cases = [_case(request, player, outcome) for player, outcome in played]
    rewards = [float(one["reward"]) for one in cases if one["reward"] is not None]
    is_clean = all(one.severity != "error" for one in findings)
    return {
        "passed": is_clean and all(one["verdict"] == "passed" for one in cases),
        "split": request.split,
        "played": len(cases),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "cases": cases,
        "findings": [finding_json(one) for one in findings],
        "log": log.text,
    }


def _case(request: TestRequest, player: Player, outcome: Outcome) -> dict[str, Any]:
    rollout, grade = outcome.rollout, outcome.grade
    total = None if grade is None else grade.total
    components = {} if grade is None else dict(grade.components)
    return {
        "name": storable(player.name),
        "task": storable(player.task.id),
        "split": request.split,
        "end": None if rollout is None else rollout.end,
        "turns": 0 if rollout is None else rollout.turns,
        "verdict": _verdict(request, outcome),
        "reward": None if isinstance(total, Unscorable) else total,
        "components": {
            name: storable(value.reason) if isinstance(value, Unscorable) else value
            for name, value in components.items()
        },
        "metrics": {} if grade is None else dict(grade.metrics),
        "findings": [finding_json(one) for one in outcome.findings],
        "seconds": round(outcome.seconds, 3),
    }


def _verdict(request: TestRequest, outcome: Outcome) -> str:
    if outcome.rollout is None or outcome.grade is None:
        return "error"
    if any(one.severity == "error" for one in outcome.findings):
        return "failed"
    is_judged_by_case = request.checkpoint is None
    if isinstance(outcome.grade.total, Unscorable) and not is_judged_by_case:
        return "unscorable"
    return "passed"
