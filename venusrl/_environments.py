"""Environments and their versions."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from venusrl._archive import name_in_archive, name_in_folder, pack
from venusrl._errors import EnvironmentInvalid, WaitTimeout
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport
from venusrl.models.environments import Environment, EnvironmentVersion

ENVIRONMENTS = "/v1/environments"

VALIDATION_WAIT_S: Final = 180.0
"""Starting the environment, loading its splits twice and playing its cases, on a busy machine."""


class AsyncEnvironments:
    """`client.environments`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def push(
        self, package: str | os.PathLike[str] | bytes, *, wait_s: float | None = VALIDATION_WAIT_S
    ) -> EnvironmentVersion:
        """Upload a package folder (or its archive) and wait until its version is ready.

        The same content is the version that exists. Raises EnvironmentInvalid with findings, Invalid
        for an archive that is refused at once, WaitTimeout; with `wait_s=None` it does not wait.
        """
        if isinstance(package, bytes):
            version = await self.upload(name_in_archive(package), package)
        else:
            folder = Path(package)
            archive = await self._transport.aside(pack, folder)
            version = await self.upload(name_in_folder(folder), archive)
        return version if wait_s is None else await self.wait(version, wait_s)

    async def upload(self, name: str, archive: bytes) -> EnvironmentVersion:
        """Upload an archive as a version of the environment; its validation has begun."""
        headers = {"Content-Type": "application/gzip"}
        path = f"{ENVIRONMENTS}/{one(name)}/versions"
        request = Request("POST", path, content=archive, headers=headers)
        return await read(self._transport, request, EnvironmentVersion)

    async def create(self, name: str) -> Environment:
        """Reserve a name; `push` does so too."""
        return await read(
            self._transport, Request("POST", ENVIRONMENTS, body={"name": name}), Environment
        )

    async def wait(
        self, version: EnvironmentVersion, timeout_s: float = VALIDATION_WAIT_S
    ) -> EnvironmentVersion:
        """The version once it is ready. Raises EnvironmentInvalid or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if version.state == "ready":
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
