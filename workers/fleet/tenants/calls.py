"""Calls at the node's door, on sandboxes that this node holds."""

import time
from dataclasses import dataclass, replace
from typing import Final, assert_never

from domain.tenant_sandboxes import SandboxState
from infra.door_frames import (
    DoorAnswer,
    DoorCall,
    DoorContent,
    DoorDone,
    DoorExec,
    DoorExecuted,
    DoorLook,
    DoorMeasure,
    DoorMeasured,
    DoorRead,
    DoorReason,
    DoorWrite,
)
from sandboxes.client import CallRefused
from venusrl.env.sandbox import (
    ExecRequest,
    ExecResult,
    ReadRequest,
    SandboxError,
    SandboxFailure,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)
from workers.fleet.tenants.held import HeldSandbox
from workers.fleet.tenants.keeper import TenantSandboxes

ENV: Final = "/usr/bin/env"
"""Of every template: sets variables for one command."""

REASONS: Final[dict[SandboxFailure, DoorReason]] = {
    "lost": DoorReason.UNKNOWN,
    "refused": DoorReason.BUSY,
    "not_found": DoorReason.NOT_FOUND,
    "denied": DoorReason.DENIED,
    "too_large": DoorReason.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class TenantCalls:
    """Every call is answered or refused; a sandbox that is lost in mid call is unknown from then on."""

    sandboxes: TenantSandboxes

    async def answer(self, call: DoorCall) -> DoorAnswer:
        """One call. Raises CallRefused."""
        match call:
            case DoorLook():
                return await self._look(call)
            case DoorExec():
                held = self._running(call.sandbox_id)
                ran = await held.calls.once(call, lambda: self._exec(held, call))
                return replace(ran, request=call.request)
            case DoorRead():
                held = self._running(call.sandbox_id)
                content = await self._ask(held, ReadRequest(call.path))
                assert isinstance(content, bytes)
                return DoorContent(call.request, content)
            case DoorWrite():
                held = self._running(call.sandbox_id)
                await self._ask(held, WriteRequest(call.path, call.content))
                return DoorDone(call.request)
            case DoorMeasure():
                return self._measure(call)
            case _:
                assert_never(call)

    async def _look(self, call: DoorLook) -> DoorDone:
        await self.sandboxes.settle(call.sandbox_id)
        held = self.sandboxes.held.get(call.sandbox_id)
        if held is not None and held.complaint:
            complaint, held.complaint = held.complaint, ""
            raise CallRefused(DoorReason.NOT_PAUSED, complaint)
        return DoorDone(call.request)

    async def _exec(self, held: HeldSandbox, call: DoorExec) -> DoorExecuted:
        argv = with_variables({**held.env, **call.env}, call.argv)
        began = time.monotonic()
        result = await self._ask(held, ExecRequest(argv, call.stdin, call.timeout_s))
        assert isinstance(result, ExecResult)
        account = self.sandboxes.relief.account
        account.turn_ended(held.member)
        kept = call.output_bytes
        cut = max(0, len(result.stdout) - kept) + max(0, len(result.stderr) - kept)
        return DoorExecuted(
            request=call.request,
            exit_code=result.exit_code,
            stdout=result.stdout[:kept],
            stderr=result.stderr[:kept],
            truncated_bytes=result.truncated_bytes + cut,
            timed_out=result.timed_out,
            wall_s=time.monotonic() - began,
        )

    async def _ask(self, held: HeldSandbox, request: SandboxRequest) -> SandboxResult:
        sandbox = self.sandboxes.runtime.get(held.member)
        if sandbox is None:
            raise CallRefused(DoorReason.UNKNOWN, "it is gone")
        try:
            return await sandbox.call(request)
        except SandboxError as error:
            raise CallRefused(REASONS[error.reason], error.detail) from error

    def _measure(self, call: DoorMeasure) -> DoorMeasured:
        held = self.sandboxes.held.get(call.sandbox_id)
        sandbox = None if held is None else self.sandboxes.runtime.get(held.member)
        if sandbox is None:
            raise CallRefused(DoorReason.UNKNOWN, "it is not here")
        stats = sandbox.stats()
        return DoorMeasured(
            request=call.request,
            private_bytes=stats.private_bytes,
            swapped_bytes=stats.swapped_bytes,
            shared_bytes=stats.shared_bytes,
            overhead_bytes=stats.overhead_bytes,
            processes=stats.pids,
            cpu_s=stats.cpu_s,
        )

    def _running(self, sandbox_id: str) -> HeldSandbox:
        held = self.sandboxes.held.get(sandbox_id)
        if held is None or held.state is SandboxState.REQUESTED:
            raise CallRefused(DoorReason.UNKNOWN, "it is not here")
        if held.state is SandboxState.PAUSED:
            raise CallRefused(DoorReason.PAUSED, "it is paused; resume it first")
        return held


def with_variables(env: dict[str, str], argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command with its variables: the guest agent knows none of single commands yet."""
    if not env:
        return argv
    return (ENV, *(f"{name}={value}" for name, value in sorted(env.items())), *argv)
