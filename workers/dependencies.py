"""Built requirements of environment packages: made once by a chore, unpacked once by each machine.

The object store knows a build by the hash of its pins and the interpreter. A small record, created
last, names the archive and its sha256: the first build of a key is the one that everybody uses. Nodes
find it by the package's own requirements.txt and never build.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import PayloadUnreadable
from environments.dependencies import pack_dependencies, unpack_dependencies
from infra.codec import convert
from infra.names import dependencies_path, dependency_archive_path
from stores.blobs import Blobs
from venusrl.env.host.dependencies import BuildLimits, PackageSource, build
from venusrl.env.host.manifest import PackageInvalid
from venusrl.env.host.requirements import Requirements, pinned

FOLDER: Final = "dependencies"
"""Of VENUS_HOME: unpacked builds by key, never written again."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A build in the object store."""

    key: str
    uri: str
    sha: str
    bytes: int
    packages: Mapping[str, str]

    def for_people(self) -> dict[str, object]:
        """What a version says of it."""
        return {"key": self.key, "packages": dict(self.packages), "bytes": self.bytes}


class Dependencies:
    """The builds that one machine has unpacked."""

    def __init__(self, blobs: Blobs, home: Path) -> None:
        self._blobs = blobs
        self._root = home / FOLDER

    async def ensure(
        self, requirements: Requirements, source: PackageSource, limits: BuildLimits | None = None
    ) -> BuildRecord:
        """The build of these pins, made if there is none. Raises PackageInvalid."""
        found = await self._record(requirements.key)
        return found or await self._build(requirements, source, limits)

    async def folder(self, package: Path) -> Path | None:
        """The unpacked build that a package needs; None when it needs none.

        Raises PayloadUnreadable, also for one that was never built for this interpreter.
        """
        try:
            requirements = pinned(package)
        except PackageInvalid as error:
            raise PayloadUnreadable(f"requirements: {error}") from error
        if not requirements.pins:
            return None
        record = await self._record(requirements.key)
        if record is None:
            raise PayloadUnreadable("requirements: not built for this machine's interpreter")
        return await self._unpacked(record)

    async def _unpacked(self, record: BuildRecord) -> Path:
        target = self._root / record.key
        if target.is_dir():
            return target
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self._root) as folder:
            archive = Path(folder) / "archive"
            await self._blobs.fetch(record.uri, archive, record.sha)
            try:
                await asyncio.to_thread(unpack_dependencies, archive, target)
            except (PackageInvalid, OSError) as error:
                raise PayloadUnreadable(f"{record.uri}: {error}") from error
        return target

    async def _build(
        self, requirements: Requirements, source: PackageSource, limits: BuildLimits | None
    ) -> BuildRecord:
        folder = Path(tempfile.mkdtemp(prefix="venus-build-"))
        try:
            wheels, archive = folder / "wheels", folder / "archive"
            built = await build(requirements, wheels, source, limits)
            await asyncio.to_thread(pack_dependencies, wheels, archive)
            sha = await asyncio.to_thread(_sha, archive)
            path = dependency_archive_path(requirements.key, sha)
            blob = await self._blobs.create_from(path, archive, sha)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        record = BuildRecord(requirements.key, blob.uri, sha, built.bytes, dict(built.packages))
        try:
            text = json.dumps(asdict(record), sort_keys=True).encode()
            await self._blobs.create(dependencies_path(record.key), text)
        except FileExistsError:
            first = await self._record(record.key)
            assert first is not None, "another build was first"
            return first
        return record

    async def _record(self, key: str) -> BuildRecord | None:
        if not await self._blobs.exists(dependencies_path(key)):
            return None
        try:
            text = await self._blobs.read(dependencies_path(key))
            return convert(json.loads(text), BuildRecord)
        except (ValueError, msgspec.ValidationError) as error:
            raise PayloadUnreadable(f"{dependencies_path(key)}: {error}") from error


def _sha(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
