"""One density: a node with so many sandboxes, a job of scripted agents, what became of them."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.density import model
from benchmarks.density.actions import GROUP_SIZE, SPLIT, script_of
from benchmarks.density.verdicts import Place, Verdict
from domain.engine import PAGE_TOKENS
from domain.ids import AttemptId, GroupId, group_id, ordinal_of, rollout_id
from simulation.usage import length, peak
from tests.support.stack import Stack, StackPlan, running_stack
from venusrl.models.rollouts import RolloutDetail, Trajectory

SHELL: Final = Path(__file__).resolve().parents[2] / "environments" / "builtin" / "shell"

GRADING_RESERVE: Final = 1
"""Sandboxes of a node that agents never get; the platform's number."""

STEPS: Final = 5

KV_PAGES: Final = 4 * model.CONTEXT // PAGE_TOKENS
"""More than a context: the scripted engine has no keys."""

JOB_S_MAX: Final = 3_600.0

LATE: Final = "the command did not end within"
"""What the environment answers when a command was cut."""

INTERVALS: Final = """
select extract(epoch from started_at)::float8, extract(epoch from ended_at)::float8
from sandbox_interval where started_at is not null and ended_at is not null
"""


@dataclass(frozen=True, slots=True)
class Density:
    """What a run gave."""

    sandboxes: int
    """That the node may have for agents."""
    verdicts: Mapping[Place, Verdict]
    seconds: float
    """From the first sandbox to the last one's end."""
    sandbox_s: float
    at_once: int
    used_bytes: int
    """The most that the job's sandboxes held at a sample: private pages and overhead."""


def run(sandboxes: int, rollouts: int, seed: int) -> Density:
    """So many rollouts on a node with so many sandboxes for agents."""
    groups = rollouts // GROUP_SIZE
    with _stack(sandboxes, _scripts(seed, groups)) as stack, TemporaryDirectory() as folder:
        version = stack.client.environments.push(SHELL, wait_s=None)
        stack.client.environments.wait(version)
        built = stack.client.models.upload("says-all", model.build(Path(folder) / "model"))
        job = stack.client.jobs.create(_spec(built.ref, version.ref, groups, seed))
        used = _watch(stack, job.id)
        return _read(stack, job.id, sandboxes, used)


@contextmanager
def _stack(sandboxes: int, scripts: Mapping[str, object]) -> Iterator[Stack]:
    with TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"by_rollout": scripts}))
        environ = {
            "VENUS_SANDBOXES": str(sandboxes + GRADING_RESERVE),
            "VENUS_CONTEXT_TOKENS": str(model.CONTEXT),
            "VENUS_KV_PAGES": str(KV_PAGES),
            "VENUS_ENGINE": "scripted",
            "VENUS_ENGINE_SCRIPT": str(script),
        }
        with running_stack(StackPlan(environ=environ)) as stack:
            yield stack


def _spec(base: str, environment: str, groups: int, seed: int) -> dict[str, Any]:
    return {
        "name": "density",
        "seed": seed,
        "model": {"base": base, "context_tokens": model.CONTEXT},
        "environments": [{"ref": environment, "split": SPLIT, "shuffle": False}],
        "rollout": {
            "group_size": GROUP_SIZE,
            "groups_per_batch": groups // STEPS,
            "sampling": {"max_tokens_per_turn": 2048},
        },
        "scheduling": {"async_ratio": 1.0},
        "optimizer": {"lr": 1e-4},
        "evaluation": None,
        "checkpoints": {"every_steps": 1000},
        "resources": {"rollout_gpus": {"min": 1, "max": 1}},
        "stop": {"max_steps": STEPS},
    }


def _scripts(seed: int, groups: int) -> dict[str, list[dict[str, list[int]]]]:
    """By the end of the rollout's id."""
    anybody = AttemptId("att_x")
    return {
        rollout_id(group_id(anybody, ordinal), index).removeprefix("ro_x"): model.said(
            script_of(seed, ordinal, index).commands
        )
        for ordinal in range(groups)
        for index in range(GROUP_SIZE)
    }


def _watch(stack: Stack, job_id: str) -> int:
    """To the job's end; the most bytes that its sandboxes were seen to hold."""
    most, until = 0, time.monotonic() + JOB_S_MAX
    while time.monotonic() < until:
        job = stack.client.jobs.get(job_id)
        if job.state in ("succeeded", "failed", "cancelled", "paused"):
            assert job.state == "succeeded", f"{job.state}: {job.queue_reason} {job.failure}"
            return most
        if job.state == "running":
            held = stack.client.jobs.profile(job_id).sandboxes
            most = max(most, (held.used_bytes or 0) if held else 0)
        time.sleep(1.0)
    raise TimeoutError(f"the job did not end within {JOB_S_MAX:.0f} s")


def _read(stack: Stack, job_id: str, sandboxes: int, used: int) -> Density:
    rollouts = stack.client.rollouts
    verdicts = {}
    for one in rollouts.list(job_id):
        found, said = rollouts.get(one.id), rollouts.trajectory(one.id)
        verdicts[ordinal_of(GroupId(one.group_id)), one.index] = _verdict(found, said)
    spans = [(float(begin), float(end)) for begin, end in stack.query(INTERVALS)]
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    return Density(sandboxes, verdicts, last - first, length(spans), peak(spans), used)


def _verdict(found: RolloutDetail, said: Trajectory) -> Verdict:
    replies = [str(one.get("content", "")) for one in said.messages if one.get("role") == "tool"]
    digest = hashlib.sha256(json.dumps(replies).encode()).hexdigest()[:16]
    return Verdict(
        found.reward,
        found.end or "open",
        found.cause or found.unscorable_reason or "",
        sum(LATE in reply for reply in replies),
        found.current_try,
        digest,
    )
