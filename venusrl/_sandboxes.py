"""Sandboxes of the project, apart from any job: commands, files, pauses, what they cost."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal

from venusrl._errors import SandboxEnded, WaitTimeout
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport
from venusrl.models.sandboxes import (
    Executed,
    Sandbox,
    SandboxGroup,
    SandboxMetrics,
    SandboxState,
    Template,
    Templates,
)

SANDBOXES: Final = "/v1/sandboxes"

ANSWER_GRACE_S: Final = 30.0
"""Beyond a command's own time, before its answer counts as lost and is asked for again."""

START_S: Final = 90.0
"""Longer than any node lets a sandbox wait for room."""


class AsyncSandboxes:
    """`client.sandboxes`. What has ended raises `Conflict` with the code `sandbox_ended` and its cause."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        template: str = "default",
        lifetime_s: float = 300.0,
        env: Mapping[str, str] | None = None,
        wait_s: float | None = START_S,
    ) -> Sandbox:
        """A sandbox that runs. Raises SandboxEnded when it could not start, WaitTimeout."""
        group = await self.create_group(
            1, template=template, lifetime_s=lifetime_s, env=env, wait_s=wait_s
        )
        return group.sandboxes[0]

    async def create_group(
        self,
        n: int,
        *,
        template: str = "default",
        lifetime_s: float = 300.0,
        env: Mapping[str, str] | None = None,
        wait_s: float | None = START_S,
    ) -> SandboxGroup:
        """`n` sandboxes as one fork: all of them run, or none was started.

        `wait_s=0` returns at once. Raises SandboxEnded when they could not start, WaitTimeout.
        """
        body = {"template": template, "n": n, "lifetime_s": lifetime_s, "env": dict(env or {})}
        params = {"wait": 0} if wait_s == 0 else {}
        made = Request("POST", SANDBOXES, params, body=body)
        group = await read(self._transport, made, SandboxGroup)
        if wait_s == 0:
            return group
        async for _ in self._transport.polls(wait_s):
            failed = [box for box in group.sandboxes if box.state == "ended"]
            if failed:
                raise SandboxEnded(failed[0])
            if all(box.state != "requested" for box in group.sandboxes):
                return group
            found = [box async for box in self.list(group=group.id)]
            group = SandboxGroup(id=group.id, sandboxes=found)
        waits_for = group.sandboxes[0].detail
        raise WaitTimeout(f"{group.id} has not started: {waits_for or 'no node took it yet'}")

    def list(
        self,
        *,
        state: SandboxState | None = None,
        group: str | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Sandboxes of the project, ended ones of the last 30 days among them; `group` is a fork's id."""
        order = "desc" if newest_first else "asc"
        params = {"state": state, "group": group, "order": order}
        return iterate(self._transport, SANDBOXES, params, Sandbox)

    async def get(self, sandbox_id: str) -> Sandbox:
        """One sandbox."""
        return await read(self._transport, Request("GET", _path(sandbox_id)), Sandbox)

    async def exec(
        self,
        sandbox_id: str,
        command: str | Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        output_bytes: int = 1 << 20,
        encoding: Literal["utf-8", "base64"] = "utf-8",
    ) -> Executed:
        """Run a command to its end; a text runs in `/bin/sh`. It runs once, also when an answer is lost.

        With `encoding="base64"` stdin and both streams are bytes in base64.
        """
        body: dict[str, Any] = {
            "command": command if isinstance(command, str) else [*command],
            "stdin": stdin,
            "env": dict(env or {}),
            "timeout_s": timeout_s,
            "output_bytes": output_bytes,
            "encoding": encoding,
        }
        request = Request(
            "POST", f"{_path(sandbox_id)}/exec", body=body, answer_s=timeout_s + ANSWER_GRACE_S
        )
        return await read(self._transport, request, Executed)

    async def read(self, sandbox_id: str, path: str) -> bytes:
        """The bytes of a regular file inside, of at most 8 MiB."""
        request = Request("GET", f"{_path(sandbox_id)}/files", {"path": path})
        content: bytes = (await self._transport.send(request)).content
        return content

    async def write(self, sandbox_id: str, path: str, content: bytes) -> None:
        """Replace a file inside, making its folders."""
        request = Request(
            "PUT",
            f"{_path(sandbox_id)}/files",
            {"path": path},
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        await self._transport.send(request)

    async def pause(self, sandbox_id: str) -> Sandbox:
        """Stop all its processes; nothing inside is lost, and its lifetime stops."""
        return await self._verb(sandbox_id, "pause")

    async def resume(self, sandbox_id: str) -> Sandbox:
        """Let it go on."""
        return await self._verb(sandbox_id, "resume")

    async def set_timeout(self, sandbox_id: str, lifetime_s: float) -> Sandbox:
        """Let it live for so long from now on; a paused one, from when it goes on."""
        return await self._verb(sandbox_id, "timeout", {"lifetime_s": lifetime_s})

    async def kill(self, sandbox_id: str) -> Sandbox:
        """End it with everything inside; one that has ended stays as it is."""
        return await read(self._transport, Request("DELETE", _path(sandbox_id)), Sandbox)

    async def metrics(self, sandbox_id: str) -> SandboxMetrics:
        """What it costs now."""
        request = Request("GET", f"{_path(sandbox_id)}/metrics")
        return await read(self._transport, request, SandboxMetrics)

    async def templates(self) -> Sequence[Template]:
        """What sandboxes can start from now."""
        return (await read(self._transport, Request("GET", "/v1/templates"), Templates)).data

    async def _verb(self, sandbox_id: str, verb: str, body: Any = None) -> Sandbox:
        request = Request("POST", f"{_path(sandbox_id)}/{verb}", body=body)
        return await read(self._transport, request, Sandbox)


def _path(sandbox_id: str) -> str:
    return f"{SANDBOXES}/{one(sandbox_id)}"
