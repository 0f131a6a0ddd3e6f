"""`venus env eval`: can a model do it at all? The package's own loop against a model, here."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from venusrl.cli.env_local import (
    JUDGE_KEY,
    Folder,
    JudgeKey,
    JudgeModel,
    JudgeUrl,
    Plain,
    judge_of,
    say_missing,
    say_notice,
)
from venusrl.cli.output import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    AsJson,
    connected,
    fail,
    write_fields,
    write_json,
)

if TYPE_CHECKING:
    from venusrl._evaluation.judges import EndpointJudge
    from venusrl._evaluation.policies import Policy, Sampling
    from venusrl._evaluation.run import Options, Report
    from venusrl.env.local.machine import Machine

BASE_VARIABLE: Final = "OPENAI_BASE_URL"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
CHECKPOINT: Final = "ckpt_"
"""How ids of checkpoints begin."""

Model = Annotated[str, typer.Option("--model", "-m", help="Name at the URL, or ckpt_...")]
K = Annotated[int, typer.Option("-k", min=1, max=1024, help="Rollouts of each task.")]
Tasks = Annotated[int | None, typer.Option(min=1, help="So many of the split; all if not given.")]
BaseUrl = Annotated[
    str | None, typer.Option(help=f"OpenAI-compatible, up to /v1; or {BASE_VARIABLE}.")
]
KeyName = Annotated[str, typer.Option(help="Environment variable that holds the URL's key.")]
PassMark = Annotated[
    float | None,
    typer.Option(help="Reward from which a rollout passes; the full score if not given."),
]


def evaluate(
    model: Model,
    folder: Folder = Path(),
    k: K = 8,
    tasks: Tasks = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    base_url: BaseUrl = None,
    key_variable: KeyName = KEY_VARIABLE,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one turn.")] = 512,
    at_once: Annotated[int, typer.Option(min=1, max=256, help="Rollouts at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    pass_mark: PassMark = None,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    judge_key_variable: JudgeKey = JUDGE_KEY,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Run k rollouts of each task against a model and print pass@k, rewards, tokens and failures."""
    from venusrl._evaluation.policies import Sampling
    from venusrl._evaluation.run import EvaluationStopped, Options
    from venusrl.env.host.manifest import PackageInvalid
    from venusrl.env.host.ports import EnvironmentFault
    from venusrl.env.local.machine import local_machine

    options = Options(k, tasks, seed, at_once, pass_mark)
    began = time.monotonic()
    sampling = Sampling(temperature, max_tokens, seed)
    judge = judge_of(judge_url, judge_model, judge_key_variable)
    url = base_url or os.environ.get(BASE_VARIABLE)
    try:
        with (
            _policy(model, url, os.environ.get(key_variable), sampling) as policy,
            local_machine(plain=plain) as machine,
        ):
            say_notice(machine)
            report = asyncio.run(_run(machine, (folder, split), policy, options, judge))
    except EvaluationStopped as stopped:
        status = EXIT_UNREACHABLE if stopped.code == "unreachable" else EXIT_REFUSED
        fail(str(stopped), status, as_json, {"code": stopped.code})
    except (PackageInvalid, EnvironmentFault) as error:
        fail(f"{error} (venus env test says more)", EXIT_REFUSED, as_json)
    seconds = round(time.monotonic() - began, 3)
    document = {**asdict(report), "truncated": report.truncated, "k": k, "seconds": seconds}
    write_json(document) if as_json else _write(report, k, seconds)


@contextmanager
def _policy(
    model: str, base_url: str | None, key: str | None, sampling: "Sampling"
) -> "Iterator[Policy]":
    """The model's side: the platform for a checkpoint, else the URL."""
    from venusrl._evaluation.policies import CheckpointPolicy, Endpoint

    if model.startswith(CHECKPOINT):
        with connected() as client:
            yield CheckpointPolicy(client, model, sampling)
        return
    if not base_url:
        fail(f"give --base-url or set {BASE_VARIABLE}; or name a checkpoint: ckpt_...", EXIT_USAGE)
    yield Endpoint(base_url, model, key, sampling)


async def _run(
    machine: "Machine",
    source: tuple[Path, str],
    policy: "Policy",
    options: "Options",
    judge: "EndpointJudge | None",
) -> "Report":
    folder, split = source
    from venusrl._evaluation.run import chosen, evaluate
    from venusrl.env.host.episode import Stage
    from venusrl.env.host.manifest import read_manifest

    manifest = read_manifest(folder)
    say_missing(manifest)
    process = await machine.start(folder, manifest, judges=judge)
    try:
        tasks = chosen(await process.load(split), options)
        stage = Stage(process, manifest, machine.sandboxes(folder))
        report = await evaluate(stage, tasks, policy, options)
        return replace(report, judge=asdict(process.judge_use))
    finally:
        await process.stop()
        await policy.close()
        if judge is not None:
            await judge.close()


def _write(report: "Report", k: int, seconds: float) -> None:
    fields: dict[str, object] = {
        "rollouts": f"{report.scored} of {report.rollouts} scored, {report.tasks} tasks",
    }
    for wanted, value in report.pass_at.items():
        fields[f"pass@{wanted}"] = f"{value:.3f}"
    fields |= {
        "reward": _interval(report),
        f"tasks at 0/{k}": _share(report.share_none),
        f"tasks at {k}/{k}": _share(report.share_all),
        "tokens": f"{_count(report.prompt_tokens)} prompt, {_count(report.sampled_tokens)} sampled",
        "tools": f"{report.tool_s:.2f} s of {seconds:.2f} s",
        "truncated": report.truncated,
        "ends": _counts(report.ends),
        "unscorable": _counts(report.unscorable),
        "failed": _counts(report.failed),
    }
    if report.judge.get("calls") or report.judge.get("failed"):
        fields["judge"] = _counts(report.judge)
    fields |= {f"reward {name}": f"{mean:.3f}" for name, mean in report.components.items()}
    fields |= {f"metric {name}": f"{mean:.3f}" for name, mean in report.metrics.items()}
    write_fields(fields)


def _interval(report: "Report") -> str:
    found = report.reward
    if found is None:
        return "nothing was scored"
    if found.low is None or found.high is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} (95 %: {found.low:.3f} to {found.high:.3f}, by task)"


def _share(share: float | None) -> str:
    return "no task has all its rollouts scored" if share is None else f"{share:.1%}"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else str(tokens)


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
