"""Running environments for tests: the shipped packages, and ones written by a test."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import environments
from tests.support.sandbox_port import RecordingPort
from venusrl.env.host.manifest import EnvironmentLimits, read_manifest
from venusrl.env.host.ports import EnvironmentProcess, InstanceKey
from venusrl.env.host.process import SandboxedEnvironment, start_environment
from venusrl.env.messages import Json, Message, Rollout, Task, ToolCall

SHIPPED = Path(environments.__file__).parent
CALC = SHIPPED / "builtin" / "calc"
REASONING_GYM = SHIPPED / "builtin" / "reasoning_gym"
CHAOS = SHIPPED / "chaos"

ADD = Message("assistant", "", (ToolCall("c1", "calculator", '{"expression": "12+07"}'),))
"""A call of the calculator, as both calc and chaos have it."""


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    config: Mapping[str, Json] | None = None,
    log: list[tuple[str, str]] | None = None,
    **limits: float,
) -> AsyncIterator[SandboxedEnvironment]:
    """A started environment under changed limits; stopped at the end."""
    manifest = read_manifest(folder)
    changed: EnvironmentLimits = replace(manifest.limits, **limits)  # type: ignore[arg-type]
    lines = [] if log is None else log
    environment = await start_environment(
        folder,
        replace(manifest, limits=changed),
        config or {},
        lambda instance, text: lines.append((instance, text)),
    )
    try:
        yield environment
    finally:
        await environment.stop()


@contextlib.asynccontextmanager
async def running_source(
    tmp_path: Path,
    source: str,
    log: list[tuple[str, str]] | None = None,
    **limits: float,
) -> AsyncIterator[SandboxedEnvironment]:
    """An environment of this source, whose class is named `Env`."""
    write_package(tmp_path, source)
    async with running(tmp_path, None, log, **limits) as environment:
        yield environment


def write_package(folder: Path, source: str, manifest: str = "") -> None:
    """A package folder whose entry class is `Env`."""
    head = 'name = "test"\nversion = "1"\nsdk = 1\nentry = "env:Env"\n'
    folder.chmod(0o755)
    (folder / "venus.toml").write_text(head + manifest)
    (folder / "env.py").write_text(
        "import asyncio, os, sys, time\nfrom venusrl.env import *\n" + source
    )
    (folder / "tasks").mkdir(exist_ok=True)
    for split in ("train", "test"):
        lines = [f'{{"id": "{split}-{n}", "prompt": "{split} {n}"}}' for n in range(4)]
        (folder / "tasks" / f"{split}.jsonl").write_text("\n".join(lines))


TASK = Task("t", (Message("user", "12+07"),), "19")


async def opened(
    environment: EnvironmentProcess,
    port: RecordingPort | None = None,
    rollout: str = "ro_1",
    task: Task = TASK,
) -> InstanceKey:
    """An instance after its setup."""
    key = InstanceKey(rollout, 1)
    await environment.open(key, task, 7, port or RecordingPort())
    await environment.setup(key)
    return key


def rollout_of(
    answer: str, index: int = 0, task: Task = TASK, replies: Sequence[Message] = ()
) -> Rollout:
    """A finished rollout that ends in this answer."""
    messages = (*task.prompt, *replies, Message("assistant", answer))
    return Rollout(f"ro_{index}", index, task, messages, "done", 1)
