"""Sandbox specs with defaults, and a runtime that ends with its test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from domain.ids import AttemptId, group_id
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.ports import Mount, Sandbox, SandboxSpec
from sandboxes.runtimes.process import ProcessRuntime
from sandboxes.runtimes.process.zygote import WARM_MODULES
from venusrl.env.sandbox import ExecRequest, ExecResult, PythonRequest

ATTEMPT = AttemptId("att_01jtest")


def member(index: int = 0, try_: int = 1) -> MemberKey:
    """The key of an agent's sandbox."""
    return MemberKey(ATTEMPT, group_id(ATTEMPT, 0), index, try_, SandboxPurpose.AGENT)


def spec(
    index: int = 0,
    try_: int = 1,
    *,
    limits: SandboxLimits | None = None,
    mounts: tuple[Mount, ...] = (),
) -> SandboxSpec:
    """One member of a fork."""
    limits = limits or SandboxLimits()
    return SandboxSpec(member(index, try_), f"test-{index}", index, limits, mounts)


@asynccontextmanager
async def process_runtime(scratch: Path, *, is_warm: bool = True) -> AsyncIterator[ProcessRuntime]:
    """A runtime whose sandboxes are all gone afterwards; from bubblewrap alone if not warm."""
    runtime = ProcessRuntime(scratch / "guest", WARM_MODULES if is_warm else None)
    try:
        yield runtime
    finally:
        await runtime.close()


async def shell(sandbox: Sandbox, script: str, timeout_s: float = 20.0) -> ExecResult:
    """Run a shell script."""
    result = await sandbox.call(ExecRequest(("sh", "-c", script), timeout_s=timeout_s))
    assert isinstance(result, ExecResult)
    return result


async def python(sandbox: Sandbox, source: str, timeout_s: float = 20.0) -> ExecResult:
    """Run Python in the warm interpreter."""
    result = await sandbox.call(PythonRequest(source, timeout_s=timeout_s))
    assert isinstance(result, ExecResult)
    return result
