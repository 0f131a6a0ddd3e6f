"""Environment packages on this node: fetched once by sha, unpacked once, never written again."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from domain.errors import PayloadUnreadable
from environments.package import unpack
from stores.blobs import Blobs
from venusrl.env.host.manifest import Manifest, PackageInvalid, read_manifest
from workers.dependencies import Dependencies


@dataclass(frozen=True, slots=True)
class PackageRef:
    """Where a package's archive lies, and the sha256 of its bytes."""

    uri: str
    sha: str


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked package."""

    folder: Path
    manifest: Manifest
    dependencies: Path | None = None
    """Its built requirements, if it has any."""


class Packages:
    """The packages of one node, in a folder of their own."""

    def __init__(self, blobs: Blobs, root: Path) -> None:
        self._blobs = blobs
        self._root = root
        self._dependencies = Dependencies(blobs, root.parent)
        self._fetched: dict[str, asyncio.Task[Package]] = {}

    async def fetch(self, ref: PackageRef) -> Package:
        """The package, from the object store if need be. Raises PayloadUnreadable."""
        task = self._fetched.get(ref.sha)
        if task is None or (task.done() and not _is_good(task)):
            task = self._fetched[ref.sha] = asyncio.create_task(self._fetch(ref))
        return await asyncio.shield(task)

    async def _fetch(self, ref: PackageRef) -> Package:
        archive = await self._blobs.read(ref.uri, ref.sha)
        folder = self._root / ref.sha.replace(":", "-")
        try:
            await asyncio.to_thread(unpack, archive, folder)
            manifest = read_manifest(folder)
        except (PackageInvalid, OSError) as error:
            raise PayloadUnreadable(f"package {ref.uri}: {error}") from error
        return Package(folder, manifest, await self._dependencies.folder(folder))


def _is_good(task: "asyncio.Task[Package]") -> bool:
    return not task.cancelled() and task.exception() is None
