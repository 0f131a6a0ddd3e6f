"""Environments and their versions."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from venusrl._archive import name_in_archive, name_in_folder, pack
from venusrl._checkpoints import AsyncOperations
from venusrl._errors import EnvironmentInvalid, WaitTimeout
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport
from venusrl.models.checkpoints import Operation
from venusrl.models.environments import Environment, EnvironmentTestReport, EnvironmentVersion

ENVIRONMENTS = "/v1/environments"

VALIDATION_WAIT_S: Final = 300.0
"""Building requirements, loading the splits twice and playing the cases, on a busy machine."""

TEST_WAIT_S: Final = 300.0
"""As long as a chore may take."""


class AsyncEnvironments:
    """`client.environments`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._operations = AsyncOperations(transport)

    async def push(
        self,
        package: str | os.PathLike[str] | bytes,
        *,
        draft: bool = False,
        wait_s: float | None = VALIDATION_WAIT_S,
    ) -> EnvironmentVersion:
        """Upload a package folder (or its archive) and wait until its version is ready.

        A `draft` is never chosen as the newest version until it is published.
        The same content is the version that exists. Raises EnvironmentInvalid with findings, Invalid
        for an archive that is refused at once, WaitTimeout; with `wait_s=None` it does not wait.
        """
        if isinstance(package, bytes):
            version = await self.upload(name_in_archive(package), package, draft=draft)
        else:
            folder = Path(package)
            archive = await self._transport.aside(pack, folder)
            version = await self.upload(name_in_folder(folder), archive, draft=draft)
        return version if wait_s is None else await self.wait(version, wait_s)

    async def upload(self, name: str, archive: bytes, *, draft: bool = False) -> EnvironmentVersion:
        """Upload an archive as a version of the environment; its validation has begun."""
        headers = {"Content-Type": "application/gzip"}
        path = f"{ENVIRONMENTS}/{one(name)}/versions"
        params = {"draft": "true"} if draft else {}
        request = Request("POST", path, params, content=archive, headers=headers)
        return await read(self._transport, request, EnvironmentVersion)

    async def create(self, name: str) -> Environment:
        """Reserve a name; `push` does so too."""
        return await read(
            self._transport, Request("POST", ENVIRONMENTS, body={"name": name}), Environment
        )

    async def wait(
        self, version: EnvironmentVersion, timeout_s: float = VALIDATION_WAIT_S
    ) -> EnvironmentVersion:
        """The version once it has passed. Raises EnvironmentInvalid or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if version.state in ("ready", "yanked"):
                return version
            if version.state == "failed":
                raise EnvironmentInvalid(version.ref, version.findings)
            version = await self.version(version.environment, version.version)
        raise WaitTimeout(f"environment {version.ref} is still {version.state}")

    def list(self) -> AsyncIterator[Environment]:
        """Environments of the project."""
        return iterate(self._transport, ENVIRONMENTS, {}, Environment)

    async def get(self, name: str) -> Environment:
        """One environment."""
        return await read(
            self._transport, Request("GET", f"{ENVIRONMENTS}/{one(name)}"), Environment
        )

    def versions(self, name: str) -> AsyncIterator[EnvironmentVersion]:
        """All versions of an environment, oldest first."""
        path = f"{ENVIRONMENTS}/{one(name)}/versions"
        return iterate(self._transport, path, {}, EnvironmentVersion)

    async def version(self, name: str, number: int) -> EnvironmentVersion:
        """One version with its state, findings and numbers of tasks."""
        path = f"{ENVIRONMENTS}/{one(name)}/versions/{number}"
        return await read(self._transport, Request("GET", path), EnvironmentVersion)

    async def yank(self, name: str, number: int, reason: str = "") -> EnvironmentVersion:
        """Refuse a version to new jobs; those that use it, and their restarts, go on."""
        return await self._verb(name, number, "yank", {"reason": reason})

    async def publish(self, name: str, number: int) -> EnvironmentVersion:
        """End a draft, or a yank."""
        return await self._verb(name, number, "publish", None)

    async def validate(
        self, name: str, number: int, *, wait_s: float | None = VALIDATION_WAIT_S
    ) -> EnvironmentVersion:
        """Validate a version again and wait; a failed outcome raises EnvironmentInvalid.

        With `wait_s=None` it does not wait. Raises OperationFailed, WaitTimeout.
        """
        path = f"{ENVIRONMENTS}/{one(name)}/versions/{number}/validate"
        operation = await read(self._transport, Request("POST", path), Operation)
        if wait_s is None:
            return await self.version(name, number)
        await self._operations.wait(operation, wait_s)
        return await self.wait(await self.version(name, number), wait_s)

    async def test(
        self,
        name: str,
        number: int,
        *,
        split: str = "test",
        tasks: int = 8,
        checkpoint: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 128,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        wait_s: float = TEST_WAIT_S,
    ) -> EnvironmentTestReport:
        """Play some of a split through a version: its cases, or tasks that a checkpoint answers.

        Raises OperationFailed, WaitTimeout.
        """
        body = {
            "split": split,
            "tasks": tasks,
            "checkpoint": checkpoint,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "config": dict(config or {}),
        }
        path = f"{ENVIRONMENTS}/{one(name)}/versions/{number}/test-runs"
        operation = await read(self._transport, Request("POST", path, body=body), Operation)
        result = await self._operations.wait(operation, wait_s)
        return EnvironmentTestReport.model_validate(result)

    async def delete(self, name: str) -> None:
        """Delete an environment; versions stay readable to the jobs that used them."""
        await self._transport.send(Request("DELETE", f"{ENVIRONMENTS}/{one(name)}"))

    async def _verb(
        self, name: str, number: int, verb: str, body: dict[str, Any] | None
    ) -> EnvironmentVersion:
        path = f"{ENVIRONMENTS}/{one(name)}/versions/{number}/{verb}"
        return await read(self._transport, Request("POST", path, body=body), EnvironmentVersion)
